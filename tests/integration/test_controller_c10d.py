"""Real torchrun with the backend c10d on the laptop cluster: the store is a pod of its own, and no worker is the one to be kept."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from controller.keys import JOBS
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import PODS, Object
from elastic.local.cluster import LocalCluster

PYTORCH = JOBS["PyTorchJob"]
PATIENCE_S = 180.0
JOB: Object = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "stored"},
    "spec": {
        "nprocPerNode": "1",
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d", "maxRestarts": 20},
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": 2,
                "restartPolicy": "OnFailure",
                "template": {
                    "spec": {
                        "terminationGracePeriodSeconds": 5,
                        "containers": [
                            {
                                "name": "pytorch",
                                "image": "example.com/train:1",
                                "command": ["torchrun", "examples/pytorch-elastic/train.py"],
                                "env": [{"name": "STEPS", "value": "150"}, {"name": "STEP_SECONDS", "value": "0.1"}],
                            }
                        ],
                    }
                },
            }
        },
    },
}


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.2)


async def state(kube: Kube) -> Object:
    status: Object = (await kube.get(PYTORCH, "stored", namespace="default")).get("status") or {}
    return status


async def log_of(kube: Kube, pod: str) -> str:
    return b"".join([chunk async for chunk in kube.logs(pod, namespace="default")]).decode()


@pytest.mark.integration
@pytest.mark.torch
@pytest.mark.timeout(600)
async def test_the_loss_of_worker_0_does_not_end_a_job_that_meets_through_c10d() -> None:
    with LocalCluster() as cluster:
        async with connect(cluster.kubeconfig) as kube:
            await kube.create(PYTORCH, JOB, namespace="default")

            async def trains() -> bool:
                counts = (await state(kube)).get("replicaStatuses", {}).get("Worker", {})
                return counts.get("active") == 2 and "step" in await log_of(kube, "stored-worker-0")

            await until("two workers train", trains)
            assert (await kube.get(PODS, "stored-rdzv", namespace="default"))["status"]["phase"] == "Running"
            first = (await kube.get(PODS, "stored-worker-0", namespace="default"))["metadata"]["uid"]
            await kube.delete(PODS, "stored-worker-0", namespace="default", grace_s=0)

            async def is_over() -> bool:
                return (await state(kube)).get("completionTime") is not None

            await until("the job is over", is_over)
            ended = await state(kube)
            assert ended["conditions"][-1]["type"] == "Succeeded", ended
            again = await kube.get(PODS, "stored-worker-0", namespace="default")
            assert again["metadata"]["uid"] != first
