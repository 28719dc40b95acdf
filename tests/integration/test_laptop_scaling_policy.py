"""The autoscaler on the laptop cluster, with jobs that really train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.api.scaling import ANNOTATION, LONGEST_RECORD, MANAGER
from elastic.kube.resources import EVENTS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(600)]
GROWS_S = 400.0


@pytest.fixture(scope="module")
def cluster(ground: Ground, shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(ground)


async def replicas(run: ElasticRun) -> int:
    job = await run.kube.get(run.key.resource, run.key.name, namespace=NAMESPACE)
    return int(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])


async def decision(run: ElasticRun) -> dict[str, Any]:
    found: dict[str, Any] = (await run.elastic()).get("autoscaler", {})
    return found


async def events(run: ElasticRun) -> list[str]:
    listing = await run.kube.list(EVENTS, namespace=NAMESPACE)
    return [item["message"] for item in listing.items if item["reason"] == "Autoscaled" and item["involvedObject"]["name"] == run.key.name]


async def test_a_job_grows_on_its_throughput_says_why_and_leaves_a_number_alone_that_a_user_sets(cluster: LocalCluster) -> None:
    # A step waits rather than works, so that four workers make four times the steps of one on a machine of two cores as well.
    policy = {"cooldownSeconds": 5, "minGainPercent": 20}
    async with elastic_run(cluster, "grows", workers=1, steps=10**6, step_s=0.5, maxReplicas=4, scalingPolicy=policy) as run:
        await run.training.until("a world of 4", lambda t: t.world == 4, within_s=GROWS_S)
        assert run.training.repeated == 0
        said = {text.split(" workers:")[0] for text in await events(run)}
        assert said == {"Scaled from 1 to 2", "Scaled from 2 to 3", "Scaled from 3 to 4"}
        await until(lambda: _is_measured(run, 4), "the status says what four workers do")
        job = await run.kube.get(run.key.resource, run.key.name, namespace=NAMESPACE)
        assert len(job["metadata"]["annotations"][ANNOTATION]) <= LONGEST_RECORD
        assert MANAGER in {entry["manager"] for entry in job["metadata"]["managedFields"] if entry.get("subresource") == "scale"}

        await run.scale(2)
        await run.world(2)
        await until(lambda: _says(run, "2 was set by"), "the status says that a user set the number")
        killed = cluster.processes()["autoscaler"]
        cluster.kill("autoscaler")
        await until(lambda: _is_another(cluster, killed), "the autoscaler is started again")
        at = len(run.training.steps)
        await run.training.until("steps in three cooldowns", lambda t: len(run.training.steps) >= at + 30, within_s=GROWS_S)
        assert await replicas(run) == 2
        assert "2 was set" in (await decision(run))["reason"]


async def _is_another(cluster: LocalCluster, pid: int) -> bool:
    return cluster.processes().get("autoscaler", pid) != pid


async def _is_measured(run: ElasticRun, workers: int) -> bool:
    known = await decision(run)
    return known.get("workers") == workers and float(known.get("throughput") or 0) > 0 and known.get("efficiencyPercent", 0) > 0


async def _says(run: ElasticRun, words: str) -> bool:
    return words in (await decision(run)).get("reason", "")
