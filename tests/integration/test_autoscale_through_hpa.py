"""On the laptop cluster a HorizontalPodAutoscaler carries out the autoscaler's decision, through API service and autoscaling loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from laptop import NAMESPACE, get, until

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import API_SERVICES, HORIZONTAL_POD_AUTOSCALERS, NAMESPACES, Object
from elastic.local import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PYTORCH = JOBS["PyTorchJob"]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, gpus=4, autoscaler_period_s=2) as running:
        yield running


def job(name: str) -> Object:
    container = {"name": "pytorch", "image": "x", "command": ["sleep", "600"], "resources": {"requests": {"cpu": "100m"}}}
    policy = {"policy": "schedule", "through": "hpa", "windows": [{"start": "00:00", "end": "00:00", "replicas": 3}], "cooldownSeconds": 0}
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d", "scalingPolicy": policy},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "restartPolicy": "OnFailure", "template": template}},
        },
    }


async def test_the_decision_reaches_scale_through_the_aggregated_api(kube: Kube, unique: str) -> None:
    name = f"through-{unique}"

    async def is_available() -> object:
        found = await get(kube, "v1beta1.external.metrics.k8s.io", resource=API_SERVICES, namespace=None)
        conditions = ((found or {}).get("status") or {}).get("conditions") or ()
        return any(c["status"] == "True" for c in conditions)

    await until(is_available, "the autoscaler is registered and answers")
    await kube.create(PYTORCH, job(name), namespace=NAMESPACE)

    async def replicas() -> int:
        return int((await kube.get(PYTORCH, name, namespace=NAMESPACE))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])

    async def is_scaled() -> object:
        return await replicas() == 3

    await until(is_scaled, "the window's three workers", within_s=120)
    hpa = await kube.get(HORIZONTAL_POD_AUTOSCALERS, name, namespace=NAMESPACE)
    assert hpa["spec"]["behavior"]["scaleUp"]["tolerance"] == "0"
    writers = (await kube.get(PYTORCH, name, namespace=NAMESPACE))["metadata"]["managedFields"]
    assert [w["manager"] for w in writers if w.get("subresource") == "scale"] == ["kube-controller-manager"], (
        "the autoscaler leaves /scale alone, and takes no other writer for its carrier"
    )
    await kube.delete(PYTORCH, name, namespace=NAMESPACE)


@pytest.mark.torch
async def test_the_example_grows_by_the_throughput_of_its_workers(kube: Kube) -> None:
    example = yaml.safe_load((EXAMPLES / "autoscaling-hpa" / "job.yaml").read_text())
    name = example["metadata"]["name"]
    await kube.create(PYTORCH, example, namespace=NAMESPACE)

    async def has_grown() -> object:
        return (await kube.get(PYTORCH, name, namespace=NAMESPACE))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] > 1

    async def has_a_metric() -> object:
        status = (await kube.get(HORIZONTAL_POD_AUTOSCALERS, name, namespace=NAMESPACE))["status"]
        return {c["type"]: c["reason"] for c in status.get("conditions", ())}.get("ScalingActive") == "ValidMetricFound"

    await until(has_grown, "more workers by throughput_per_worker", within_s=180)
    # The metric is unknown from the change of the world to its first steps.
    await until(has_a_metric, "the metric of the larger world", within_s=120)
    await kube.delete(PYTORCH, name, namespace=NAMESPACE)


async def test_a_namespace_goes_while_the_autoscaler_serves(kube: Kube, unique: str) -> None:
    name = f"goes-{unique}"
    await kube.create(NAMESPACES, {"metadata": {"name": name}})
    await kube.delete(NAMESPACES, name)

    async def is_gone() -> bool:
        try:
            await kube.get(NAMESPACES, name)
        except KubeError as error:
            return error.code == 404
        return False

    await until(is_gone, "the namespace goes")
