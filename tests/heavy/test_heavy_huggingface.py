"""Hugging Face's Trainer in an elastic job on the laptop cluster: what it has learned outlives its workers."""

import asyncio
import re

import pytest
from example_jobs import LOOK_EVERY_S, NAMESPACE, claim_volumes, laptop, log_of, read, run_to_end
from grounds import Ground

from elastic.kube.client import Kube
from elastic.kube.resources import PODS

pytestmark = [pytest.mark.heavy, pytest.mark.integration, pytest.mark.timeout(600)]
WITHIN_S = 500.0


@pytest.mark.framework("huggingface")
@pytest.mark.full
def test_the_trainer_goes_on_from_its_checkpoint_after_a_worker_is_lost() -> None:
    async def lose(kube: Kube) -> None:
        """Takes the worker that has rank 0 away once there is a checkpoint."""
        await claim_volumes(kube, "huggingface")
        name = ""
        while not name:
            await asyncio.sleep(LOOK_EVERY_S)
            pods = (await kube.list(PODS, namespace=NAMESPACE, labels="training.kubeflow.org/job-name=huggingface")).items
            for pod in (entry["metadata"]["name"] for entry in pods):
                name = pod if re.search(r"rank 0 saved step \d+", await log_of(kube, pod, "pytorch")) else name
        await kube.delete(PODS, name, namespace=NAMESPACE)

    with laptop(Ground("netns"), "huggingface") as cluster:
        outcome = run_to_end(cluster, read("huggingface"), within_s=WITHIN_S, framework="huggingface", meanwhile=lose)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.log_of_any("done at step 300"), outcome.story
    assert re.search(r"world \d rank \d goes on from checkpoint-\d+", "\n".join(outcome.logs.values())), outcome.story
    assert "user" not in outcome.elastic["restarts"], outcome.story
