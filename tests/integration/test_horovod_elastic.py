"""Elastic Horovod on the laptop cluster: real horovodrun and real training, while workers are added, removed and lost."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_jobs import NAMESPACE, Outcome, laptop, read, resource, run_to_end
from grounds import Ground

from elastic.kube.client import Kube, Patch
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(500), pytest.mark.sandboxes("netns")]
WITHIN_S, PATIENCE_S = 400.0, 120.0
STEP = re.compile(r"step (\d+) in a world of (\d+)")


@pytest.fixture(scope="module")
def cluster(ground: Ground) -> Iterator[LocalCluster]:
    with laptop(ground, "horovod") as running:
        yield running


class Running:
    """The job while it trains, as its launcher's log tells."""

    def __init__(self, kube: Kube, job: dict[str, Any]) -> None:
        self.kube, self.job, self.name = kube, job, job["metadata"]["name"]

    async def steps(self) -> list[tuple[int, int]]:
        """Every step so far and the size of its world, in the order of the log."""
        chunks = []
        with contextlib.suppress(Exception):  # before the launcher runs it has no log
            chunks = [chunk async for chunk in self.kube.logs(f"{self.name}-launcher", namespace=NAMESPACE, container="mpi")]
        return [(int(step), int(size)) for step, size in STEP.findall(b"".join(chunks).decode(errors="replace"))]

    async def until_world(self, size: int, *, after: int = 0) -> int:
        """Until a step later than `after` was made in a world of this size; returns that step."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [step for step, world in await self.steps() if world == size and step > after]
                if found:
                    return found[-1]
                await asyncio.sleep(0.2)

    async def scale(self, workers: int) -> None:
        body = {"spec": {"replicas": workers}}
        await self.kube.patch(resource(self.job), self.name, body, namespace=NAMESPACE, kind=Patch.MERGE, subresource="scale")

    async def workers(self) -> list[str]:
        labels = f"training.kubeflow.org/job-name={self.name},training.kubeflow.org/replica-type=worker"
        pods = (await self.kube.list(PODS, namespace=NAMESPACE, labels=labels)).items
        return sorted(pod["metadata"]["name"] for pod in pods)

    async def until_workers(self, *names: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.workers() != list(names):  # noqa: ASYNC110
                await asyncio.sleep(0.2)


def example(name: str, *, steps: int, workers: int = 1) -> dict[str, Any]:
    job = read("horovod-elastic")
    job["metadata"]["name"] = name
    specs = job["spec"]["mpiReplicaSpecs"]
    specs["Worker"]["replicas"] = workers
    specs["Launcher"]["template"]["spec"]["containers"][0]["env"] = [{"name": "STEPS", "value": str(steps)}]
    return job


def kill_training(worker: str) -> None:
    """The training process that horovodrun started in this worker ends at once."""
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that has just ended
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            is_training = command.endswith(b"train.py\0") and not command.startswith(b"/bin/sh")
            if is_training and f"HOROVOD_HOSTNAME={worker}\0".encode() in environment:
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    assert killed, f"no training runs in {worker}"


def losses(outcome: Outcome, name: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", outcome.logs[f"{name}-launcher"])]


@pytest.mark.heavy
@pytest.mark.framework("horovod")
def test_training_goes_on_as_workers_are_added_and_removed(cluster: LocalCluster) -> None:
    job = example("grows", steps=300)

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        step = await running.until_world(1)
        await running.scale(3)
        step = await running.until_world(3, after=step)
        await running.scale(2)
        await running.until_world(2, after=step)
        await running.until_workers("grows-worker-0", "grows-worker-1")

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.elastic["observed"] == "driver", outcome.story
    assert outcome.elastic.get("restarts", {}) == {}, outcome.story
    found = losses(outcome, "grows")
    assert found[-1] < found[0] / 100, outcome.story
    steps = [int(step) for step, _ in STEP.findall(outcome.logs["grows-launcher"])]
    assert steps == sorted(steps), "an uncommitted step was lost although nothing failed"


@pytest.mark.heavy
@pytest.mark.framework("horovod")
def test_training_goes_on_after_a_worker_was_killed(cluster: LocalCluster) -> None:
    job = example("killed", steps=400, workers=2)

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        step = await running.until_world(2)
        kill_training("killed-worker-1")
        await running.until_world(2, after=step + 20)

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    log = outcome.logs["killed-launcher"]
    assert re.search(r"Process \d exit with status code 137", log), outcome.story  # which rank it had, is chance
    assert len({step for step, _ in STEP.findall(log)}) == 400, outcome.story
    assert losses(outcome, "killed")[-1] < losses(outcome, "killed")[0] / 100
