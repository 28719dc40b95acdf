"""A job on the laptop that meets in an etcd says what is wrong with its workers, where a job at the rendezvous server says it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from etcd_server import needs_etcd
from grounds import Ground
from in_process_jobs import SCRIPT
from installed_etcd import etcd_on_path
from laptop import until

from elastic.api.words import Cause
from elastic.cli import main
from elastic.kube.resources import EVENTS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, needs_etcd, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
SLOW = (ROOT / "tests/fixtures/stragglers/train.py").read_text()
ETCD = {"rdzvBackend": "etcd", "readyAfterSeconds": 1}
TOLD_WITHIN_S = 150.0


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTIC_STRAGGLER_WINDOW", "1")
        with etcd_on_path(), ground.cluster(tmp_path_factory.mktemp("etcd-diagnosis")) as running:
            yield running


def job_file(folder: Path, example: str, script: str, *arguments: str) -> Path:
    """Write the job of this example with another script, and return its path."""
    (folder / "train.py").write_text(script)
    job = yaml.safe_load((ROOT / "examples" / example / "job.yaml").read_text())
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["command"] = ["torchrun", str(folder / "train.py"), *arguments]
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


async def events(run: ElasticRun, reason: str) -> list[str]:
    found = (await run.kube.list(EVENTS, namespace=NAMESPACE)).items
    return [event["message"] for event in found if event["reason"] == reason and event["involvedObject"]["name"] == run.key.name]


async def findings(run: ElasticRun) -> dict[str, str]:
    """Return the words of each reason that `elastic explain` gives."""
    words = ["explain", run.key.name, "-o", "json", "--kubeconfig", str(run.cluster.kubeconfig)]
    told = (await asyncio.to_thread(CliRunner().invoke, main, words)).stdout
    return {one["reason"]: one["message"] for one in json.loads(told)["findings"]}


async def test_a_suspected_hang_is_told_until_it_ends(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "etcd-halted", workers=2, steps=100_000, minReplicas=2, maxReplicas=2, **ETCD) as run:
        await run.step(20, world=2)
        victim = run.pod_name(1)
        run.crash(victim, signal.SIGSTOP)

        async def suspected() -> dict[str, Any] | None:
            found: dict[str, Any] = (await run.elastic()).get("hang") or {}
            return found if found.get("state") == "SuspectedHang" else None

        hang = await until(suspected, "the suspicion", within_s=TOLD_WITHIN_S)
        assert isinstance(hang, dict)
        first = hang["ranks"][0]
        assert (first["pods"], first["kind"]) == ([{"name": victim, "node": "node-0"}], "stopped")
        told = f"({victim} on node-0) has been stopped by a signal for at least "
        (event,) = await until(lambda: events(run, "SuspectedHang"), "the Event")  # type: ignore[misc]
        assert told in event
        assert told in (await findings(run))["SuspectedHang"]
        run.crash(victim, signal.SIGCONT)
        await run.more_steps(5)
        assert await until(lambda: events(run, "TrainingMoves"), "the end of it")
        assert "hang" not in await run.elastic()
        assert (await run.restarts()) == {}


async def test_a_straggler_is_told_until_it_is_fast_again(cluster: LocalCluster, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    file, policy = job_file(tmp_path, "pytorch-in-process", SLOW, str(slow)), {"minReplicas": 3, "maxReplicas": 3, **ETCD}
    async with elastic_run(cluster, "etcd-slowly", workers=3, steps=0, file=file, **policy) as run:

        async def complete() -> bool:
            return (await run.elastic()).get("worldSize") == 3

        async def stragglers() -> list[dict[str, Any]]:
            return list((await run.elastic()).get("stragglers", []))

        async def is_calm() -> bool:
            return not await stragglers()

        await until(complete, "the world")
        victim = run.pod_name(1)
        (slow / victim).write_text("compute 0.3")
        (found,) = await until(stragglers, "the straggler", within_s=TOLD_WITHIN_S)  # type: ignore[misc]
        assert (found["pod"], found["node"], found["kind"]) == (victim, "node-0", "Compute")
        assert await until(lambda: events(run, "Straggler"), "the Event")
        assert found["message"][1:] in (await findings(run))["Straggler"]
        (slow / victim).unlink()
        await until(is_calm, "the end of it", within_s=TOLD_WITHIN_S)


ENDS_EARLY = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
if rank == 1:
    sys.exit(0)
time.sleep(3)
raise RuntimeError("rank 1 is missing")
"""


async def test_a_worker_that_ends_early_is_named_with_the_one_that_failed_after_it(cluster: LocalCluster, tmp_path: Path) -> None:
    file, policy = job_file(tmp_path, "pytorch-elastic", ENDS_EARLY), {"minReplicas": 2, "maxReplicas": 2, **ETCD}
    async with elastic_run(cluster, "etcd-early", workers=2, steps=0, file=file, **policy) as run:

        async def ended_early() -> str:
            return str((await run.elastic()).get("endedEarly", ""))

        told = await until(ended_early, "the early end", within_s=TOLD_WITHIN_S)
        assert " ended with status 0, and then a worker of etcd-early-worker-" in str(told)
        assert "(rank 0: RuntimeError: rank 1 is missing (train.py:10))" in str(told)
        await run.success()
        assert await until(lambda: events(run, "EndedEarly"), "the Event")
        assert str(told) in (await findings(run))["EndedEarly"]
        assert not [cause for cause in await run.restarts() if Cause(cause).is_charged]


async def test_failing_saves_are_told_until_one_succeeds(cluster: LocalCluster, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    file = job_file(tmp_path, "pytorch-in-process", SCRIPT, "5000", "0.1", str(tmp_path))
    env = {"SAVES": str(saves), "SAVE_EVERY_S": "0.5"}
    async with elastic_run(cluster, "etcd-unsaved", workers=2, steps=0, file=file, env=env, **ETCD) as run:

        async def has_saved() -> bool:
            return any(saves.glob("*.json"))

        async def failed_saves() -> list[dict[str, Any]]:
            return list((await run.elastic()).get("failedSaves", []))

        async def is_well() -> bool:
            return not await failed_saves()

        await until(has_saved, "the first save", within_s=TOLD_WITHIN_S)
        saves.rename(tmp_path / "moved")
        saves.touch()  # a file in the place of the folder
        (told,) = await until(failed_saves, "the failing save", within_s=TOLD_WITHIN_S)  # type: ignore[misc]
        assert "File exists" in told["message"]
        assert await until(lambda: events(run, "SaveFailed"), "the Event")
        assert "File exists" in (await findings(run))["SaveFailed"]
        saves.unlink()
        await until(is_well, "a save that succeeds", within_s=TOLD_WITHIN_S)
