"""HorizontalPodAutoscalers on the laptop cluster: a job with elasticPolicy.metrics scales on the CPU that its workers use."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from laptop import NAMESPACE, get, until

from elastic.kube.client import Kube
from elastic.kube.resources import EVENTS, HORIZONTAL_POD_AUTOSCALERS, Object
from elastic.local import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PYTORCH = JOBS["PyTorchJob"]
BUSY_THEN_IDLE = "import pathlib, time\nwhile not pathlib.Path(r'{}').exists(): pass\ntime.sleep(600)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, autoscaler_period_s=2) as running:
        yield running


def job(name: str, script: str) -> Object:
    container = {"name": "pytorch", "image": "x", "command": [sys.executable, "-c", script], "resources": {"requests": {"cpu": "100m"}}}
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d", "metrics": [metric]},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "restartPolicy": "OnFailure", "template": template}},
        },
    }


async def test_a_job_grows_by_the_cpu_of_its_workers(kube: Kube, unique: str, tmp_path: object) -> None:
    name = f"busy-{unique}"
    await kube.create(PYTORCH, job(name, BUSY_THEN_IDLE.format(f"{tmp_path}/never")), namespace=NAMESPACE)

    async def autoscaler() -> Object:
        return await get(kube, name, resource=HORIZONTAL_POD_AUTOSCALERS) or {}

    async def scaled() -> object:
        return (await kube.get(PYTORCH, name, namespace=NAMESPACE))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2

    await until(scaled, "two workers are asked for", within_s=120)

    # As in Kubernetes the target is scaled first. Until status and Event follow, they are of the look before.
    async def measured() -> Object | None:
        found = await autoscaler()
        conditions = {c["type"]: (c["status"], c["reason"]) for c in found["status"].get("conditions", ())}
        return found if conditions.get("ScalingActive") == ("True", "ValidMetricFound") else None

    found = await until(measured, "the autoscaler says that it has a valid metric")
    assert found["status"]["currentMetrics"][0]["resource"]["current"]["averageUtilization"] > 66

    async def rescaled() -> list[str]:
        listing = await kube.list(EVENTS, namespace=NAMESPACE)
        own = [event for event in listing.items if event["involvedObject"].get("uid") == found["metadata"]["uid"]]
        return [event["message"] for event in own if event["reason"] == "SuccessfulRescale"]

    said = await until(rescaled, "an Event about the new size")
    assert said == ["New size: 2; reason: cpu resource utilization (percentage of request) above target"]

    async def settled() -> object:
        return (await autoscaler())["status"].get("currentReplicas") == 2

    await until(settled, "the autoscaler sees both workers")
    await kube.delete(PYTORCH, name, namespace=NAMESPACE)

    async def gone() -> object:
        return await get(kube, name, resource=HORIZONTAL_POD_AUTOSCALERS) is None

    await until(gone, "the autoscaler goes with its job")
