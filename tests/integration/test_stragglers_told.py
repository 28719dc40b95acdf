"""A worker of a job on the laptop cluster is slow: the job says so everywhere until it is fast again, or replaces it if it is asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.cli import main
from elastic.kube.resources import EVENTS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/fixtures/stragglers/train.py"
TOLD_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTIC_STRAGGLER_WINDOW", "0.4")
        with ground.cluster(tmp_path_factory.mktemp("stragglers")) as running:
            yield running


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """Write a job whose workers read from a folder how slow they are."""
    job = yaml.safe_load((ROOT / "examples/pytorch-in-process/job.yaml").read_text())
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    (tmp_path / "slow").mkdir()
    container["command"] = ["torchrun", str(SCRIPT), str(tmp_path / "slow")]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


def plant(file: Path, pod: str, words: str) -> None:
    """Make the worker of this pod slow."""
    new = file.parent / "new"
    new.write_text(words)
    new.rename(file.parent / "slow" / pod)


async def elastic_status(run: ElasticRun) -> dict[str, Any]:
    job = await run.kube.get(run.key.resource, run.key.name, namespace=NAMESPACE)
    return dict(job.get("status", {}).get("elastic", {}))


async def stragglers(run: ElasticRun) -> list[dict[str, Any]]:
    return list((await elastic_status(run)).get("stragglers", []))


async def events(run: ElasticRun, reason: str) -> list[str]:
    found = (await run.kube.list(EVENTS, namespace=NAMESPACE)).items
    return [event["message"] for event in found if event["reason"] == reason and event["involvedObject"]["name"] == run.key.name]


async def said(run: ElasticRun, command: str, *options: str) -> str:
    """Return the output of a command about the job."""
    words = [command, run.key.name, *options, "--kubeconfig", str(run.cluster.kubeconfig)]
    return (await asyncio.to_thread(CliRunner().invoke, main, words)).stdout


async def test_a_straggler_is_told_everywhere_until_it_is_fast_again(cluster: LocalCluster, job_file: Path) -> None:
    policy = {"minReplicas": 3, "maxReplicas": 3}
    async with elastic_run(cluster, "slowly", workers=3, steps=0, file=job_file, **policy) as run:
        await until(lambda: size(run, 3), "the world")
        victim = run.pod_name(1)
        plant(job_file, victim, "compute 0.3")
        (found,) = await until(lambda: stragglers(run), "the straggler", within_s=TOLD_WITHIN_S)
        assert (found["pod"], found["node"], found["kind"]) == (victim, "node-0", "Compute")
        assert found["percent"] >= 150
        assert f"({victim} on node-0) needs " in found["message"]
        (event,) = await until(lambda: events(run, "Straggler"), "the Event")
        assert found["message"] in event
        told = json.loads(await said(run, "explain", "-o", "json"))
        assert [one["pod"] for one in told["stragglers"]] == [victim]
        (words,) = [one["message"] for one in told["findings"] if one["reason"] == "Straggler"]
        assert found["message"][1:] in words
        for command in ("get", "top"):
            assert f"({victim}), which is slow: Compute" in await said(run, command), command
        (job_file.parent / "slow" / victim).unlink()

        async def is_over() -> bool:
            return not await stragglers(run)

        await until(is_over, "the end of the slowness", within_s=TOLD_WITHIN_S)
        assert len(await until(lambda: events(run, "StragglerRecovered"), "the second Event")) == 1
        assert len(await events(run, "Straggler")) == 1
        assert (await elastic_status(run)).get("restarts", {}) == {}


async def size(run: ElasticRun, wanted: int) -> bool:
    return bool((await elastic_status(run)).get("worldSize") == wanted)


@pytest.mark.full
async def test_a_straggler_is_replaced_and_no_restart_is_counted(cluster: LocalCluster, job_file: Path) -> None:
    policy = {"minReplicas": 3, "maxReplicas": 3, "stragglers": "Replace"}
    async with elastic_run(cluster, "replaced", workers=3, steps=0, file=job_file, **policy) as run:
        await until(lambda: size(run, 3), "the world")
        victim = run.pod_name(2)
        survivors = run.training_processes(run.pod_name(0))
        plant(job_file, victim, "compute 0.3")
        sizes: list[int] = []

        async def is_replaced() -> bool:
            elastic = await elastic_status(run)
            sizes.append(elastic["worldSize"])
            return set(elastic["ranks"].split(",")) == {"0", "1", "3"} and not elastic.get("leaving")

        await until(is_replaced, "the replacement", within_s=2 * TOLD_WITHIN_S)
        assert set(sizes) == {3}, "training goes on at full size"
        assert run.training_processes(run.pod_name(0)) == survivors
        elastic = await elastic_status(run)
        assert (elastic.get("restarts", {}), elastic.get("stragglers", [])) == ({}, [])
        assert [(one["signal"], one["outcome"]) for one in elastic["disruptions"]] == [("Straggler", "Left")]
