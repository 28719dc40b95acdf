"""Run examples/pytorch-elastic as one job on a laptop cluster and keep its workers' output, for tests that disturb the job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from story import Story, Training

from elastic.api.names import JOB_NAME
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.following import Event, FollowedJob, Happening, Line, Outcome, follow
from elastic.kube.resources import PODS
from elastic.kube.submission import Submission
from elastic.local import LocalCluster

JOB_FILE = Path(__file__).resolve().parents[2] / "examples/pytorch-elastic/job.yaml"
PATIENCE_S = 100.0
NAMESPACE = "default"


@dataclass
class Watched(Training):
    """A training that remembers the steps in the order of their reports, and also the events and libraries."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    libraries: dict[str, str] = field(default_factory=dict)
    """The digest of elastic_worker that the last agent of each pod printed. Only agents of `release_before.training_image` print it."""

    def hear(self, happening: Happening) -> None:
        match happening:
            case Line(_, text) if text.startswith("step "):
                words = text.split()
                self.steps.append((int(words[1]), int(words[3])))
            case Line(pod, text) if text.startswith("agent with library "):
                self.libraries[pod] = text.split()[3]
            case Event():
                self.events.append(happening)
        super().hear(happening)


@dataclass(frozen=True)
class ElasticRun:
    """One job while it trains."""

    cluster: LocalCluster
    kube: Kube
    key: FollowedJob
    training: Watched

    async def step(self, step: int, *, world: int) -> None:
        reached = f"step {step} in a world of {world}"
        await self.training.until(reached, lambda t: t.step >= step and t.world == world, within_s=PATIENCE_S)

    async def world(self, world: int) -> None:
        """Wait until the next step is made in a world of this size."""
        await self.training.until(f"a world of {world}", lambda t: t.world == world, within_s=PATIENCE_S)

    async def more_steps(self, count: int) -> None:
        at = self.training.step
        await self.training.until(f"{count} steps after step {at}", lambda t: t.step >= at + count, within_s=PATIENCE_S)

    async def new_world(self, size: int, *, after: int) -> None:
        """Wait until a step is made in a world that formed after this number of others."""
        await self.training.until(f"a new world of {size}", lambda t: t.worlds > after and t.world == size, within_s=PATIENCE_S)

    async def success(self) -> None:
        await self.training.until("success", lambda t: t.ended is Outcome.SUCCEEDED, within_s=PATIENCE_S)

    async def scale(self, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        await self.kube.patch(self.key.resource, self.key.name, body, namespace=NAMESPACE, kind=Patch.MERGE, subresource="scale")

    async def evict(self, name: str) -> None:
        """Evict a pod as soon as its disruption budget permits."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.kube.create(PODS, body, namespace=NAMESPACE, name=name, subresource="eviction")
                    return
                except KubeError as error:
                    if error.code != 429:
                        raise
                await asyncio.sleep(0.2)

    def kill_worker(self, name: str) -> None:
        """Kill every process of the pod at once, and tell nobody."""
        for pid in self.cluster.pids(NAMESPACE, name):
            with contextlib.suppress(ProcessLookupError):  # the process ended with its parent
                os.kill(pid, signal.SIGKILL)

    def crash(self, name: str, by: signal.Signals = signal.SIGKILL) -> None:
        """Kill or stop the training processes of a pod by a signal, and let its torchrun live."""
        for pid in self.training_processes(name):
            os.kill(pid, by)

    def pod_name(self, index: int) -> str:
        return f"{self.key.name}-worker-{index}"

    def training_processes(self, name: str) -> set[int]:
        """Return the training processes of a pod."""
        return {pid for pid in self.cluster.pids(NAMESPACE, name) if _trains(pid)}

    async def pods(self) -> dict[str, tuple[str, int]]:
        """Return each pod's uid, and how often its containers were restarted."""
        listing = await self.kube.list(PODS, namespace=NAMESPACE, labels=f"{JOB_NAME}={self.key.name}")
        return {pod["metadata"]["name"]: (pod["metadata"]["uid"], _restarts(pod)) for pod in listing.items}

    async def restarts(self) -> dict[str, int]:
        """Return the restarts by cause from the job's status."""
        found: dict[str, int] = (await self.elastic()).get("restarts", {})
        return found

    async def condition_with(self, words: str) -> str:
        """Wait until the job's newest condition has these words, and return its message."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                job = await self.kube.get(self.key.resource, self.key.name, namespace=NAMESPACE)
                conditions = job.get("status", {}).get("conditions") or [{"message": ""}]
                message: str = conditions[-1]["message"]
                if words in message:
                    return message
                await asyncio.sleep(0.2)

    async def elastic(self) -> dict[str, Any]:
        """Return `status.elastic` of the job."""
        job = await self.kube.get(self.key.resource, self.key.name, namespace=NAMESPACE)
        found: dict[str, Any] = job.get("status", {}).get("elastic", {})
        return found


def _trains(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").split()
    except OSError:
        return False
    return bool(command) and command[-1].endswith(b"train.py") and not any(word.endswith(b"torchrun") for word in command)


def _restarts(pod: dict[str, Any]) -> int:
    return sum(container["restartCount"] for container in pod["status"].get("containerStatuses") or ())


@contextlib.asynccontextmanager
async def elastic_run(
    cluster: LocalCluster,
    name: str,
    *,
    workers: int,
    steps: int,
    step_s: float = 0.05,
    stop_file: Path | None = None,
    image: str = "",
    file: Path = JOB_FILE,
    pod: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    gpus: int = 0,
    run_policy: Mapping[str, Any] | None = None,
    **policy: Any,
) -> AsyncIterator[ElasticRun]:
    """Run the example with another name, size and image, and add `pod` to the spec of its pods, and `env` to their environment.

    The job is removed at the end, even if the test fails. With a stop file, the training goes on beyond `steps` until the file exists.
    """
    job = yaml.safe_load(file.read_text())
    job["metadata"]["name"] = name
    job["spec"]["elasticPolicy"] |= policy
    job["spec"]["runPolicy"] = {**job["spec"].get("runPolicy", {}), **(run_policy or {})}
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = workers
    container = worker["template"]["spec"]["containers"][0]
    container["image"] = image or container["image"]
    values = {"STEPS": str(steps), "STEP_SECONDS": str(step_s), "STOP_FILE": str(stop_file or ""), **(env or {})}
    container["env"] = [{"name": name, "value": value} for name, value in values.items()]
    worker["template"]["spec"] |= pod or {}
    if gpus:
        job["spec"]["nprocPerNode"] = "1"
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    training = Watched(Story())
    async with connect(cluster.kubeconfig) as kube:
        submission = Submission(kube, namespace=NAMESPACE)
        key = await submission.create(job)
        following = asyncio.create_task(_follow(kube, key, training))
        try:
            yield ElasticRun(cluster, kube, key, training)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            left = await submission.undo()
        assert not left


async def _follow(kube: Kube, key: FollowedJob, training: Watched) -> None:
    training.end(await follow(kube, key, training.hear))
