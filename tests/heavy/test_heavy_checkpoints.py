"""Elastic jobs whose checkpoints lie on a claim, on the laptop cluster: what was learned outlives any change of their workers."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
from typing import Any

import pytest
from example_jobs import LOOK_EVERY_S, NAMESPACE, claim_volumes, laptop, log_of, read, resource, run_to_end
from grounds import Ground

from elastic.kube.client import Kube
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.heavy, pytest.mark.full, pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
WITHIN_S = 500.0
ENDLESS = "1000000"
STARTS, SAVED = r"world {world} rank 0 starts at step (\d+)", r"saved step (\d+)"


def endless(example: str) -> dict[str, Any]:
    """It trains until `Watched.goes_on_until` says otherwise, however long a loaded machine takes for what happens before."""
    job = read(example)
    _env(job)["STEPS"]["value"] = ENDLESS
    return job


def _env(job: dict[str, Any]) -> dict[str, dict[str, str]]:
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry for entry in container["env"]}


class Watched:
    """A job whose newest line of a kind counts, in the log of the worker that has rank 0."""

    def __init__(self, kube: Kube, job: dict[str, Any]) -> None:
        self.kube, self.job, self.name = kube, job, job["metadata"]["name"]
        self.first = ""
        """The pod that said what was found last."""
        self._seen: dict[str, int] = {}

    async def says(self, pattern: str) -> int:
        """Waits for a line after those that were found in its log; returns its number."""
        while True:
            for pod in await self.pods():
                log = await log_of(self.kube, pod, "pytorch")
                if found := re.compile(pattern).search(log, self._seen.get(pod, 0)):
                    self.first, self._seen[pod] = pod, found.end()
                    return int(found[1])
            await asyncio.sleep(LOOK_EVERY_S)

    async def pods(self) -> list[str]:
        found = await self.kube.list(PODS, namespace=NAMESPACE, labels=f"training.kubeflow.org/job-name={self.name}")
        return [pod["metadata"]["name"] for pod in found.items]

    async def patch(self, spec: dict[str, Any]) -> None:
        await self.kube.patch(resource(self.job), self.name, {"spec": spec}, namespace=NAMESPACE)

    async def scale(self, workers: int) -> None:
        await self.patch({"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}})

    async def pauses(self) -> None:
        await self.patch({"runPolicy": {"suspend": True}})
        while await self.pods():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        self._seen.clear()

    async def goes_on_until(self, step: int) -> None:
        _env(self.job)["STEPS"]["value"] = str(step)
        template = self.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        await self.patch({"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": {"Worker": {"template": template}}})


def kill(cluster: LocalCluster, pod: str) -> None:
    for pid in cluster.pids(NAMESPACE, pod):
        with contextlib.suppress(ProcessLookupError):  # a child whose parent was killed before it
            os.kill(pid, signal.SIGKILL)


def test_a_job_with_checkpoints_on_a_claim_goes_on_after_all_its_workers_are_gone() -> None:
    """It is suspended, and its newest checkpoint is then cut off, as by a volume that was full: the one before is taken."""
    job = endless("pytorch-checkpoints")
    with laptop(Ground("netns")) as cluster:
        folder = cluster.data_dir / "claims" / NAMESPACE / "pytorch-checkpoints" / "run-1"

        async def meanwhile(kube: Kube) -> None:
            watched = Watched(kube, job)
            await claim_volumes(kube, "pytorch-checkpoints")
            await watched.says(SAVED)
            await watched.pauses()
            before, newest = sorted(folder.glob("step-*.pt"))[-2:]
            newest.write_bytes(newest.read_bytes()[:200])
            step = int(before.stem.removeprefix("step-"))
            await watched.goes_on_until(step + 100)
            assert await watched.says(STARTS.format(world=r"\d")) == step

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, meanwhile=meanwhile)
        left = len(list(folder.iterdir()))
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.log_of_any("passes over step-"), outcome.story
    assert left <= 3, "two checkpoints, and the one that was cut off"


@pytest.mark.parametrize(
    ("example", "framework"),
    [("pytorch-fsdp", ""), pytest.param("deepspeed", "deepspeed", marks=pytest.mark.framework("deepspeed"))],
    ids=["fsdp", "deepspeed"],
)
def test_a_sharded_job_goes_on_from_its_checkpoint_in_worlds_of_other_sizes(example: str, framework: str) -> None:
    """A change that is planned costs no step, for all ranks save before it; a lost worker costs those since the last checkpoint."""
    if framework == "deepspeed" and shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles a part of itself, and there is no g++; scripts/setup-tests says which package brings it")
    job = endless(example)
    with laptop(Ground("netns"), framework) as cluster:

        async def meanwhile(kube: Kube) -> None:
            watched = Watched(kube, job)
            await claim_volumes(kube, example)
            await watched.says(SAVED)
            for workers in (3, 1, 2) if example == "pytorch-fsdp" else (3, 2):
                await watched.scale(workers)
                saved = await watched.says(SAVED + r" of world \d: the world changes")
                assert await watched.says(STARTS.format(world=workers)) == saved, "no step is lost"
            saved = await watched.says(SAVED)
            kill(cluster, next(pod for pod in await watched.pods() if pod != watched.first))
            step = await watched.says(STARTS.format(world=r"\d"))
            assert step >= saved
            await watched.pauses()
            await watched.goes_on_until(step + 100)

        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework=framework, meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    log = outcome.log_of_any("rank 0 starts")
    assert float(re.search(r"step \d+ world \d loss ([\d.]+)", log)[1]) < 0.25, "an untrained model's is 0.4 or more"
    shards = re.findall(r"world (\d) rank 0 starts at step \d+ with (\d+) of 833 parameters", log)
    assert bool(shards) == (example == "pytorch-fsdp"), outcome.story
    assert all((own == "833") == (world == "1") for world, own in shards), outcome.story
    assert "user" not in outcome.elastic["restarts"], outcome.story
