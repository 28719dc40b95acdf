"""Faults are planted in jobs on the laptop cluster. A program that reads only `elastic explain -o json` finds each cause.

The jobs train one after the other, a few at a time, because all of them share the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from grounds import Ground
from laptop import until

from elastic.cli import main
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.following import FollowedJob
from elastic.kube.resources import PODS
from elastic.kube.submission import Submission
from elastic.local import LocalCluster
from elastic.local.files import Layout
from elastic.local.installation import AUTOSCALER_TOKEN
from elastic.membership.reading import reader

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(1200)]
SCRIPT = Path(__file__).resolve().parents[1] / "fixtures/planted.py"
NAMESPACE = "default"
TOLD_WITHIN_S = 200.0
Object = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("planted")) as running:
        yield running


def job_with(name: str, *, workers: int = 2, replicas: int | None = None, container: Object | None = None, **policy: Any) -> Object:
    """Return an elastic job whose script has the fault of this name."""
    own = {"name": "pytorch", "image": "example.com/train:1", "command": ["torchrun", str(SCRIPT), name]} | (container or {})
    template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [own]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 0} | policy,
            "nprocPerNode": "1",
            "pytorchReplicaSpecs": {"Worker": {"replicas": replicas or workers, "restartPolicy": "OnFailure", "template": template}},
        },
    }


class Planted:
    """One job with a fault."""

    def __init__(self, cluster: LocalCluster, kube: Kube, key: FollowedJob) -> None:
        self.kube, self.key = kube, key
        self._kubeconfig = str(cluster.kubeconfig)
        self._layout = Layout(cluster.data_dir)

    async def findings(self) -> dict[str, str]:
        """Return the words of each reason, as a program reads them."""
        words = ["explain", self.key.name, "-o", "json", "--kubeconfig", self._kubeconfig]
        said = await asyncio.to_thread(CliRunner().invoke, main, words)
        return {one["reason"]: one["message"] for one in json.loads(said.stdout)["findings"]} if said.exit_code == 0 else {}

    async def found(self, reason: str) -> str:
        """Wait for this reason, and return its words."""

        async def words() -> str | None:
            return (await self.findings()).get(reason)

        said = await until(words, f"{reason} of {self.key.name}", within_s=TOLD_WITHIN_S)
        assert isinstance(said, str)
        return said

    async def trains(self, world: int) -> None:
        async def is_there() -> bool:
            job = await self.kube.get(self.key.resource, self.key.name, namespace=NAMESPACE)
            elastic = (job.get("status") or {}).get("elastic") or {}
            return elastic.get("worldSize") == world and "firstStep" in (elastic.get("lastRescale") or {}).get("phases", {})

        await until(is_there, f"{self.key.name} trains with {world}", within_s=TOLD_WITHIN_S)

    async def reports(self, step: int) -> None:
        """Wait until the rendezvous server has heard of a step that is at least as high."""
        folder = self._layout.installation
        url = f"https://127.0.0.1:{self._layout.read_ports()['rendezvous']}"
        client = reader(url, token=folder / AUTOSCALER_TOKEN, ca=folder / "ca.crt")
        assert client is not None
        async with client, asyncio.timeout(TOLD_WITHIN_S):
            async for progress in client.progress():
                if progress.job == self.key.uid and progress.step is not None and progress.step >= step:
                    return

    async def patch(self, spec: Object, *, subresource: str | None = None) -> None:
        await self.kube.patch(
            self.key.resource, self.key.name, {"spec": spec}, namespace=NAMESPACE, kind=Patch.MERGE, subresource=subresource
        )


@asynccontextmanager
async def planted(cluster: LocalCluster, job: Object) -> AsyncIterator[Planted]:
    async with connect(cluster.kubeconfig) as kube:
        submission = Submission(kube, namespace=NAMESPACE)
        try:
            yield Planted(cluster, kube, await submission.create(job))
        finally:
            await submission.undo()


@pytest.mark.parametrize(
    ("job", "reason", "words"),
    [
        (job_with("bug"), "user", "KeyError: 'learning_rate'"),
        (job_with("gpu-memory"), "outOfMemory", "CUDA out of memory"),
        (job_with("device"), "user", "a GPU, its link or its driver failed, so cordon the node"),
        (
            job_with("hang", minReplicas=2, maxReplicas=2, maxRestarts=1, hangTimeoutSeconds=15),
            "hang",
            "sleeps at tests/fixtures/planted.py",
        ),
        (
            job_with("silent-loop", minReplicas=2, maxReplicas=2, maxRestarts=1, hangTimeoutSeconds=20, firstStepTimeoutSeconds=5),
            "hang",
            "every rank except one has waited for 20 s: rank ",
        ),
        (job_with("gpus", container={"resources": {"limits": {"nvidia.com/gpu": 9}}}), "Unschedulable", "nvidia.com/gpu"),
        (
            job_with("secret", container={"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}]}),
            "CreateContainerConfigError",
            "absent",
        ),
        (job_with("elsewhere", container={"command": ["sleep", "600"]}), "MissingWorkers", "have not come to the rendezvous"),
        (job_with("flag", container={"command": ["torchrun", "--nonsense", str(SCRIPT), "flag"]}), "user", "--nonsense"),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)
async def test_a_fault_is_found_by_its_reason(cluster: LocalCluster, job: Object, reason: str, words: str) -> None:
    async with planted(cluster, job) as one:
        assert words in await one.found(reason)


async def scaled(one: Planted) -> None:
    await one.patch({"replicas": 3}, subresource="scale")
    await one.trains(3)


async def suspended(one: Planted) -> None:
    await one.patch({"runPolicy": {"suspend": True}})


async def deleted(one: Planted) -> None:
    await one.kube.delete(PODS, f"{one.key.name}-worker-1", namespace=NAMESPACE)


@pytest.mark.parametrize(
    ("job", "deed", "reason", "words"),
    [
        (job_with("forgets", maxRestarts=3), scaled, "StepsLost", "its script loaded no checkpoint"),
        (job_with("slow-save", maxRestarts=3, scaleInGraceSeconds=1), scaled, "WorkersKilled", "a save under way is cut off"),
        (job_with("halted"), suspended, "Suspended", "it is suspended"),
        (job_with("evicted"), deleted, "disruption", "deleted"),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)
async def test_a_fault_of_a_change_is_found_by_its_reason(
    cluster: LocalCluster, job: Object, deed: Callable[[Planted], Any], reason: str, words: str
) -> None:
    async with planted(cluster, job) as one:
        await one.trains(2)
        await one.reports(5)  # there must be a step to fall back from
        await deed(one)
        assert words in await one.found(reason)
