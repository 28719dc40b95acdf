"""Elastic jobs of examples/ that train until a test has changed their workers often enough."""

import asyncio
import contextlib
import os
import re
import signal
from typing import Any

from example_jobs import LOOK_EVERY_S, NAMESPACE, log_of, read, resource

from elastic.kube.client import Kube
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

ENDLESS = "1000000"


def endless(example: str) -> dict[str, Any]:
    """Return an example's job that trains until `Watched.goes_on_until` says otherwise. A loaded machine may take long until then."""
    job = read(example)
    set_env(job, STEPS=ENDLESS)
    return job


def set_env(job: dict[str, Any], **values: str) -> None:
    """Set variables of the workers."""
    entries = _container(job)["env"]
    entries[:] = [entry for entry in entries if entry["name"] not in values]
    entries += [{"name": name, "value": value} for name, value in values.items()]


def _container(job: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return container


class Watched:
    """A job on the laptop cluster, whose logs are read."""

    def __init__(self, kube: Kube, job: dict[str, Any]) -> None:
        self.kube, self.job, self.name = kube, job, job["metadata"]["name"]
        self.first = ""
        """The pod in whose log the last line was found."""
        self._seen: dict[str, int] = {}

    async def says(self, pattern: str) -> int:
        """Wait for a line after those that were found in its log, and return its number."""
        while True:
            for pod in await self.pods():
                log = await log_of(self.kube, pod, "pytorch")
                if found := re.compile(pattern).search(log, self._seen.get(pod, 0)):
                    self.first, self._seen[pod] = pod, found.end()
                    return int(found[1])
            await asyncio.sleep(LOOK_EVERY_S)

    async def said(self, pattern: str) -> list[int]:
        """Return the numbers in all such lines of the pods that exist."""
        logs = [await log_of(self.kube, pod, "pytorch") for pod in await self.pods()]
        return [int(number) for log in logs for number in re.findall(pattern, log)]

    async def pods(self) -> list[str]:
        found = await self.kube.list(PODS, namespace=NAMESPACE, labels=f"training.kubeflow.org/job-name={self.name}")
        return [pod["metadata"]["name"] for pod in found.items]

    async def patch(self, spec: dict[str, Any]) -> None:
        await self.kube.patch(resource(self.job), self.name, {"spec": spec}, namespace=NAMESPACE)

    async def scale(self, workers: int) -> None:
        await self.patch({"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}})

    async def pauses(self) -> None:
        """Suspend the job and wait until its pods are gone."""
        await self.patch({"runPolicy": {"suspend": True}})
        while await self.pods():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        self._seen.clear()

    async def goes_on_until(self, step: int) -> None:
        """Resume a job that pauses, until this step."""
        set_env(self.job, STEPS=str(step))
        template = self.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        await self.patch({"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": {"Worker": {"template": template}}})


def kill(cluster: LocalCluster, pod: str) -> None:
    """Kill all processes of a pod."""
    for pid in cluster.pids(NAMESPACE, pod):
        with contextlib.suppress(ProcessLookupError):  # a child whose parent was killed before it
            os.kill(pid, signal.SIGKILL)
