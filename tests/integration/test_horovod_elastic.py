"""Train with elastic Horovod on the laptop cluster, with a real horovodrun, while workers are added, removed and lost."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from example_jobs import laptop, run_to_end
from grounds import Ground
from horovod_jobs import BOTH_WAYS, STEP, Running, example, kill_training, losses, without_library

from elastic.kube.client import Kube
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(500), pytest.mark.sandboxes("netns")]
WITHIN_S = 400.0


@pytest.fixture(scope="module")
def cluster(ground: Ground) -> Iterator[LocalCluster]:
    with laptop(ground, "horovod") as running:
        yield running


@pytest.mark.heavy
@pytest.mark.framework("horovod")
def test_training_goes_on_as_workers_are_added_and_removed(cluster: LocalCluster) -> None:
    job = example("grows", steps=300)
    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=partial(_one_three_two, job))
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.elastic["observed"] == "driver", outcome.story
    assert outcome.elastic.get("restarts", {}) == {}, outcome.story
    found = losses(outcome, "grows")
    assert found[-1] < found[0] / 100, outcome.story
    steps = [int(step) for step, _ in STEP.findall(outcome.logs["grows-launcher"])]
    assert steps == sorted(steps), "an uncommitted step was lost although nothing failed"


async def _one_three_two(job: dict[str, Any], kube: Kube) -> None:
    running = Running(kube, job)
    step = await running.until_world(1)
    await running.scale(3)
    step = await running.until_world(3, after=step)
    await running.scale(2)
    await running.until_world(2, after=step)
    await running.until_workers(f"{running.name}-worker-0", f"{running.name}-worker-1")


@pytest.mark.heavy
@pytest.mark.full
@pytest.mark.framework("horovod")
@BOTH_WAYS
def test_a_launcher_without_our_library_asks_for_its_hosts_by_the_script(cluster: LocalCluster, transport: str) -> None:
    """The status counts pods. One of the two hosts that come may be listed while the others meet."""
    name = f"scripted-{transport.lower()}"
    job = without_library(example(name, steps=600, transport=transport))
    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=partial(_one_three_two, job))
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.elastic["observed"] == "pods", outcome.story
    assert outcome.elastic.get("restarts", {}) == {}, outcome.story
    steps = [int(step) for step, _ in STEP.findall(outcome.logs[f"{name}-launcher"])]
    assert steps == sorted(steps), outcome.story


@pytest.mark.heavy
@pytest.mark.framework("horovod")
def test_training_goes_on_after_a_worker_was_killed(cluster: LocalCluster) -> None:
    job = example("killed", steps=400, workers=2)

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        step = await running.until_world(2)
        kill_training("killed-worker-1")
        await running.until_world(2, after=step + 20)

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    log = outcome.logs["killed-launcher"]
    assert re.search(r"Process \d exit with status code 137", log), outcome.story  # its rank is chance
    assert len({step for step, _ in STEP.findall(log)}) == 400, outcome.story
    assert losses(outcome, "killed")[-1] < losses(outcome, "killed")[0] / 100
