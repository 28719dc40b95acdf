"""A script for Hugging Face's Trainer that knows nothing of us shows its progress, as a TrainJob and as a PyTorchJob."""

import asyncio
from typing import Any

import pytest
from example_jobs import LOOK_EVERY_S, NAMESPACE, laptop, log_of, run_to_end
from grounds import Ground

from elastic.client.live import ask, of_laptop
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import PODS, TRAIN_JOBS
from elastic.local import LocalCluster
from elastic.local.files import Layout

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.full,
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.framework("huggingface"),
    pytest.mark.timeout(600),
]
WITHIN_S = 400.0
STEPS = 40
STEP_SECONDS = "0.4"
"""The callback reports at its begin and its end, and once in 5 s in between."""
IMAGE = "example.com/huggingface:5"
COMMAND = ["torchrun", "tests/heavy/plain_trainer.py"]
ENV = [{"name": name, "value": value} for name, value in (("STEPS", str(STEPS)), ("STEP_SECONDS", STEP_SECONDS), ("OMP_NUM_THREADS", "1"))]


def train_job() -> dict[str, Any]:
    trainer = {"image": IMAGE, "numNodes": 2, "numProcPerNode": 1, "command": COMMAND, "env": ENV}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "plain", "namespace": NAMESPACE},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }


def pytorch_job(*, is_elastic: bool, **annotations: str) -> dict[str, Any]:
    container = {"name": "pytorch", "image": IMAGE, "command": COMMAND, "env": ENV}
    worker = {"replicas": 2 if is_elastic else 1, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    policy = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}} if is_elastic else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "plain", "namespace": NAMESPACE, "annotations": annotations},
        "spec": {**policy, "nprocPerNode": "1", "pytorchReplicaSpecs": {"Worker": worker}},
    }


async def statuses_of(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Run the TrainJob to its end, and return its statuses."""
    found: list[dict[str, Any]] = []
    async with connect(cluster.kubeconfig) as kube, asyncio.timeout(WITHIN_S):
        await kube.create(TRAIN_JOBS, train_job(), namespace=NAMESPACE)
        while not (found and found[-1].get("conditions")):
            status = (await kube.get(TRAIN_JOBS, "plain", namespace=NAMESPACE)).get("status") or {}
            if not found or status != found[-1]:
                found.append(status)
            await asyncio.sleep(LOOK_EVERY_S)
        if found[-1]["conditions"][0]["type"] != "Complete":
            pods = [pod["metadata"]["name"] for pod in (await kube.list(PODS, namespace=NAMESPACE)).items]
            raise AssertionError("\n".join([str(found[-1]), *[await log_of(kube, pod, "node") for pod in pods]]))
    return found


def test_an_unmodified_script_fills_the_status_of_its_train_job() -> None:
    with laptop(Ground("netns"), "huggingface") as cluster:
        statuses = asyncio.run(statuses_of(cluster))
    told = [status["trainerStatus"] for status in statuses if "trainerStatus" in status]
    done = [one["progressPercentage"] for one in told]
    assert done == sorted(done)
    assert any(0 < one < 100 for one in done)
    assert done[-1] == 100
    assert told[-1]["estimatedRemainingSeconds"] == 0
    metrics = {metric["name"]: float(metric["value"]) for metric in told[-1]["metrics"]}
    assert metrics["train_loss"] > 0
    assert 0 < metrics["current_step"] <= STEPS


@pytest.mark.parametrize("word", ["on", "off"])
def test_an_unmodified_script_reports_its_steps_in_a_pytorch_job_unless_it_is_told_not_to(word: str) -> None:
    job = pytorch_job(is_elastic=True, **{"elastic-training/report": word})
    with laptop(Ground("netns"), "huggingface") as cluster:
        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="huggingface")
    assert outcome.state == "Succeeded", outcome.story
    assert bool(outcome.elastic.get("step")) == (word == "on"), outcome.story


def test_the_dashboard_shows_the_progress_of_a_job_that_is_not_elastic() -> None:
    done: set[int] = set()
    with laptop(Ground("netns"), "huggingface", dashboard=True) as cluster:

        async def meanwhile(kube: Kube) -> None:
            while 100 not in done:
                place = of_laptop(Layout(cluster.data_dir))
                found = await ask(place) if place is not None else {}
                done.update(sample.percent for sample in found.values() if sample.percent is not None and sample.loss is not None)
                await asyncio.sleep(LOOK_EVERY_S)

        outcome = run_to_end(cluster, pytorch_job(is_elastic=False), within_s=WITHIN_S, framework="huggingface", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert any(0 < percent < 100 for percent in done)
