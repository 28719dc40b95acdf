"""A job on the laptop cluster loses a worker: with another one it goes on at the next step, without one it begins again, and it says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.api.kinds import KINDS
from elastic.client.explanation import explained
from elastic.client.summary import summary
from elastic.kube.resources import EVENTS, PODS
from elastic.local import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
PYTORCH = KINDS["PyTorchJob"]
AGAIN_WITHIN_S = 150.0


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("steps")) as running:
        yield running


async def lost(run: ElasticRun) -> dict[str, Any]:
    """Delete worker 0, and return the newest change once training has reported a step after it."""
    before = (await run.elastic())["lastRescale"]["id"]
    await run.kube.delete(PODS, run.pod_name(0), namespace=NAMESPACE)

    async def change() -> dict[str, Any] | None:
        found: dict[str, Any] = (await run.elastic())["lastRescale"]
        return found if found["id"] != before and "stepAfter" in found else None

    told = await until(change, "a step after the change", within_s=AGAIN_WITHIN_S)
    assert isinstance(told, dict)
    return told


async def words(run: ElasticRun) -> list[str]:
    of = await run.kube.find(JOBS["PyTorchJob"], run.key.name, namespace=NAMESPACE)
    assert of is not None
    return list(explained(summary(PYTORCH, of), [], of["spec"], datetime.now(UTC)))


async def warnings(run: ElasticRun) -> list[str]:
    events = (await run.kube.list(EVENTS, namespace=NAMESPACE)).items
    return [e["message"] for e in events if e["reason"] == "StepsLost" and e["involvedObject"]["name"] == run.key.name]


async def test_a_job_that_loses_its_last_worker_says_which_steps_are_lost(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "forgets", workers=1, steps=100_000, minReplicas=1, maxReplicas=1) as run:
        await run.step(20, world=1)
        change = await lost(run)
        assert change["stepBefore"] > 5, "reports are sent once a second"
        assert change["stepsLost"] == change["stepBefore"] - change["stepAfter"] + 1 > 1
        assert change["stateLost"] is True
        said = f"continues at step {change['stepAfter']:,} after step {change['stepBefore']:,}: no worker had the state"
        assert f"After it, training {said.replace('continues', 'continued')}." in await words(run)
        told = await until(lambda: warnings(run), "the warning")
        assert told == [f"PyTorchJob forgets {said} (rescale {change['id']})"]


async def test_a_job_that_keeps_a_worker_says_that_it_goes_on(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "remembers", workers=2, steps=100_000, minReplicas=1, maxReplicas=2) as run:
        await run.step(20, world=2)
        change = await lost(run)
        assert change["stepAfter"] >= change["stepBefore"] > 5
        assert {"stepsLost", "stateLost"}.isdisjoint(change)
        assert any(f"after step {change['stepBefore']:,}." in line for line in await words(run))
        assert await warnings(run) == []
