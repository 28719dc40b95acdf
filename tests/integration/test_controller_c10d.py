"""Real torchrun with the backend c10d on the laptop cluster: the store is a pod of its own, and no worker is the one to be kept."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest
from grounds import Ground

from elastic.api.names import JOB_NAME, REPLICA_TYPE
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, Object
from elastic.local.cluster import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]

PYTORCH = JOBS["PyTorchJob"]
PATIENCE_S = 180.0
TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
print("world", dist.get_world_size(), flush=True)
is_over = torch.zeros(1)
while not is_over:  # summed over all, so that they end at the same step
    time.sleep(0.1)
    is_over.fill_(os.path.exists(sys.argv[1]))
    dist.all_reduce(is_over)
dist.destroy_process_group()
"""


def job(name: str, *, restarts: int, stop_file: Path) -> Object:
    container = {
        "name": "pytorch",
        "image": "example.com/train:1",
        "command": ["torchrun", "--no-python", "python", "-c", TRAINING, str(stop_file)],
    }
    template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": "1",
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d", "maxRestarts": restarts},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": template}},
        },
    }


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.2)


async def state(kube: Kube, name: str) -> Object:
    status: Object = (await kube.get(PYTORCH, name, namespace="default")).get("status") or {}
    return status


async def uid(kube: Kube, pod: str) -> str:
    """Return a pod's uid, or an empty string while the pod does not exist."""
    try:
        return str((await kube.get(PODS, pod, namespace="default"))["metadata"]["uid"])
    except KubeError:
        return ""


async def workers(kube: Kube, job: str) -> dict[str, str]:
    """Return the uids of the job's workers by name."""
    listing = await kube.list(PODS, namespace="default", labels=f"{JOB_NAME}={job},{REPLICA_TYPE}=worker")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listing.items}


async def log_of(kube: Kube, pod: str) -> str:
    """Return a pod's log, or an empty string while it has no log."""
    try:
        return b"".join([chunk async for chunk in kube.logs(pod, namespace="default")]).decode()
    except KubeError:
        return ""


@pytest.fixture(scope="module")
def cluster(ground: Ground, shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(ground)


@pytest.mark.parametrize(("name", "restarts"), [("ample", 20), ("spent", 0)])
async def test_the_loss_of_worker_0_does_not_end_a_job_that_meets_through_c10d(cluster: LocalCluster, name: str, restarts: int) -> None:
    async with connect(cluster.kubeconfig) as kube:
        stop_file = cluster.data_dir / f"stop-{name}"
        await kube.create(PYTORCH, job(name, restarts=restarts, stop_file=stop_file), namespace="default")

        async def trains(*, without: Collection[str] = ()) -> bool:
            """Return whether two workers run, and the new ones train in a world of two."""
            counts = (await state(kube, name)).get("replicaStatuses", {}).get("Worker", {})
            new = [pod for pod, uid in (await workers(kube, name)).items() if uid not in without]
            return counts.get("active") == 2 and bool(new) and all(["world 2" in await log_of(kube, pod) for pod in new])

        await until("two workers train", trains)
        before, store = await workers(kube, name), await uid(kube, f"{name}-rdzv")
        await kube.delete(PODS, f"{name}-worker-0", namespace="default", grace_s=0)

        await until("a new worker trains with another", lambda: trains(without=before.values()))
        stays = await uid(kube, f"{name}-rdzv") == store
        # A survivor whom torch allows no restart closes its rendezvous, and only a fresh store opens it; unless its agent sees the newcomer
        # before the end of its own worker, as on a busy machine, and restarts as for any change of members.
        assert stays or restarts == 0

        stop_file.touch()

        async def is_over() -> bool:
            return (await state(kube, name)).get("completionTime") is not None

        await until("the job is over", is_over)
        ended = await state(kube, name)
        assert ended["conditions"][-1]["type"] == "Succeeded", ended
        assert not ended["elastic"].get("restarts"), "torch charged the survivor; the job is charged nothing"
        await kube.delete(PYTORCH, name, namespace="default")
