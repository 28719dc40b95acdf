"""Hugging Face's Trainer in an elastic job on the laptop cluster: what it has learned outlives its workers."""

import asyncio
import re
from typing import Any

import pytest
import yaml
from example_jobs import LOOK_EVERY_S, NAMESPACE, ROOT, laptop, run_to_end
from grounds import Ground

from elastic.kube.client import Kube
from elastic.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS

pytestmark = [pytest.mark.heavy, pytest.mark.integration, pytest.mark.timeout(600)]
WITHIN_S = 500.0


@pytest.mark.framework("huggingface")
@pytest.mark.full
def test_the_trainer_goes_on_from_its_checkpoint_after_a_worker_is_lost() -> None:
    claim, job = yaml.safe_load_all((ROOT / "examples/huggingface/job.yaml").read_text())

    async def lose(kube: Kube) -> None:
        """Takes the worker that has rank 0 away once there is a checkpoint."""
        await kube.create(PERSISTENT_VOLUME_CLAIMS, claim, namespace=NAMESPACE)
        name = ""
        while not name:
            await asyncio.sleep(LOOK_EVERY_S)
            pods = (await kube.list(PODS, namespace=NAMESPACE, labels="training.kubeflow.org/job-name=huggingface")).items
            logs = {pod["metadata"]["name"]: await said(kube, pod) for pod in pods}
            name = next((pod for pod, log in logs.items() if re.search(r"rank 0 saved step \d+", log)), "")
        await kube.delete(PODS, name, namespace=NAMESPACE)

    with laptop(Ground("netns"), "huggingface") as cluster:
        outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="huggingface", meanwhile=lose)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.log_of_any("done at step 300"), outcome.story
    assert re.search(r"world \d rank \d goes on from checkpoint-\d+", "\n".join(outcome.logs.values())), outcome.story
    assert "user" not in outcome.elastic["restarts"], outcome.story


async def said(kube: Kube, pod: dict[str, Any]) -> str:
    if pod["status"].get("phase") != "Running":
        return ""
    return b"".join([chunk async for chunk in kube.logs(pod["metadata"]["name"], namespace=NAMESPACE, container="pytorch")]).decode(
        errors="replace"
    )
