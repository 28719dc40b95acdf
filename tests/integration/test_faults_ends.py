"""End elastic jobs on a cluster.

No job waits for a worker that comes after the work is done, and a failed job keeps the pods and logs that tell why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from grounds import Ground
from laptop import until

from elastic.api.job import Object
from elastic.api.names import JOB_NAME
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.following import FollowedJob
from elastic.kube.resources import PODS
from elastic.kube.submission import Submission
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]
NAMESPACE = "default"
WITHIN_S = 120.0
UNTIL_ASKED = "echo trains in $RANK; touch {folder}/$ELASTIC_MEMBER$PET_RDZV_ID; while ! test -e {folder}/finish; do sleep 0.02; done"


@pytest.fixture(scope="module")
def cluster(ground: Ground, shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(ground)


def job(name: str, script: str, *, workers: int, **policy: object) -> Object:
    container = {"name": "pytorch", "image": "example.com/train:1", "command": ["torchrun", "--no-python", "sh", "-c", script]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 5}
    worker = {"replicas": workers, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    bounds = {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 0, **policy}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"elasticPolicy": bounds, "nprocPerNode": "1", "pytorchReplicaSpecs": {"Worker": worker}},
    }


class Run:
    """A job and its pods."""

    def __init__(self, cluster: LocalCluster, kube: Kube, key: FollowedJob) -> None:
        self.cluster, self.kube, self.key = cluster, kube, key

    async def status(self) -> Object:
        found: Object = (await self.kube.get(self.key.resource, self.key.name, namespace=NAMESPACE)).get("status", {})
        return found

    async def state(self) -> str:
        """Return the type of the last condition, as kubectl get shows it."""
        return str([c["type"] for c in (await self.status()).get("conditions", [])][-1:])

    async def pods(self) -> dict[str, Object]:
        listing = await self.kube.list(PODS, namespace=NAMESPACE, labels=f"{JOB_NAME}={self.key.name}")
        return {pod["metadata"]["name"]: pod for pod in listing.items}

    async def phases(self) -> dict[str, str]:
        return {name: pod["status"]["phase"] for name, pod in (await self.pods()).items()}

    def kill(self, name: str) -> None:
        for pid in self.cluster.pids(NAMESPACE, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def ends(self, type: str) -> None:
        async def has_ended() -> bool:
            return type in await self.state()

        await until(has_ended, f"the job is {type}", within_s=WITHIN_S)


@contextlib.asynccontextmanager
async def running(cluster: LocalCluster, wanted: Object) -> AsyncIterator[Run]:
    async with connect(cluster.kubeconfig) as kube:
        submission = Submission(kube, namespace=NAMESPACE)
        try:
            yield Run(cluster, kube, await submission.create(wanted))
        finally:
            await submission.undo()


async def test_a_worker_that_is_lost_shortly_before_the_end_does_not_keep_the_job_running(cluster: LocalCluster, tmp_path: Path) -> None:
    """The worker's peers had finished before its container was back, and then it waited for ever at the rendezvous."""
    tmp_path.chmod(0o777)
    async with running(cluster, job("late", UNTIL_ASKED.format(folder=tmp_path), workers=3)) as run:
        await until(lambda: len(list(tmp_path.glob("late-worker-*"))) == 3, "all train", within_s=WITHIN_S)
        await asyncio.sleep(1)
        run.kill("late-worker-1")
        (tmp_path / "finish").touch()
        await run.ends("Succeeded")

        async def is_over() -> bool:
            return set((await run.phases()).values()) == {"Succeeded"}

        await until(is_over, "the worker that came late ended with 0, or was removed with the finished job", within_s=WITHIN_S)
        elastic = (await run.status())["elastic"]
        assert set(elastic.get("restarts", {})) <= {"plan"}


async def test_a_failed_elastic_job_keeps_its_pods_and_their_logs_and_none_of_them_runs_on(cluster: LocalCluster) -> None:
    async with running(cluster, job("told", "sleep 1; echo here is the reason >&2; exit 3", workers=2)) as run:
        await run.ends("Failed")

        async def is_over() -> bool:
            return set((await run.phases()).values()) == {"Failed"}

        await until(is_over, "no worker runs on", within_s=60)
        assert len(await run.pods()) == 2
        logs = [b"".join([chunk async for chunk in run.kube.logs(name, namespace=NAMESPACE)]) for name in await run.pods()]
        assert any(b"here is the reason" in log for log in logs), logs
