"""Lose machines under an elastic job, with and without notice. The job goes on elsewhere, and grows again when there is room."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.api.words import Cause
from elastic.kube.nodes import cordon
from elastic.kube.resources import NODES, PODS
from elastic.local import LocalCluster
from elastic.local.agent.asking import ask_agents
from elastic.local.agent.control import Add, Kill
from elastic.local.reclaim import PLAYABLE, as_seen, show

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]
GRACE_S = 12.0
PATIENCE_S = 100.0
UNREACHABLE = "node.kubernetes.io/unreachable"
LEAVES_SOON = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for key in (UNREACHABLE, "node.kubernetes.io/not-ready")
]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("losses"), nodes=1, node_grace_s=GRACE_S) as running:
        yield running


@contextlib.asynccontextmanager
async def second_worker_on(node: str, cluster: LocalCluster, job: str) -> AsyncIterator[ElasticRun]:
    """Run a job with one worker on node-0, which takes no more, and one on a node of its own. Check at the end that nothing is charged."""
    async with elastic_run(cluster, job, workers=1, steps=5000, pod={"tolerations": LEAVES_SOON}) as run:
        await run.step(1, world=1)
        await cordon(run.kube, "node-0")
        ask_agents(cluster.data_dir, Add(name=node))
        await run.scale(2)
        await run.world(2)
        assert (await run.kube.get(PODS, run.pod_name(1), namespace=NAMESPACE))["spec"]["nodeName"] == node
        yield run
        assert not charged(found := await run.elastic()), found


async def test_a_worker_leaves_a_machine_that_is_to_be_taken_back_before_it_is_and_no_step_is_made_twice(cluster: LocalCluster) -> None:
    async with second_worker_on("noticed", cluster, "warned") as run:
        before = await run.pods()
        await show(run.kube, "noticed", as_seen(PLAYABLE["aws-spot"], now=datetime.now(UTC), left_s=None))
        await run.world(1)
        ask_agents(cluster.data_dir, Kill(name="noticed"))
        await run.kube.delete(NODES, "noticed")
        await run.more_steps(10)
        assert run.training.repeated == 0

        await cordon(run.kube, "node-0", is_cordoned=False)
        await run.world(2)
        after = await run.pods()
        assert after[run.pod_name(0)] == before[run.pod_name(0)]
        assert run.training.repeated == 0


async def test_a_job_goes_on_without_the_workers_of_a_silent_node_and_with_them_when_it_is_back(cluster: LocalCluster) -> None:
    async with second_worker_on("spot", cluster, "bereft") as run:
        before, lost = await run.pods(), run.pod_name(1)
        ask_agents(cluster.data_dir, Kill(name="spot"))
        await run.world(1)
        await until(lambda: _is_unreachable(run, "spot"), "the node is unreachable", within_s=PATIENCE_S)
        await until(lambda: _is_driven_out(run, lost), "its pod is driven out", within_s=PATIENCE_S)
        await run.more_steps(10)

        ask_agents(cluster.data_dir, Add(name="spot"))
        await run.world(2)
        after = await run.pods()
        assert after[run.pod_name(0)] == before[run.pod_name(0)]
        assert before[lost] not in after.values()


def charged(elastic: dict[str, Any]) -> list[str]:
    return [cause for cause in elastic.get("restarts", {}) if Cause(cause).is_charged]


async def _is_unreachable(run: ElasticRun, name: str) -> bool:
    node = await run.kube.get(NODES, name)
    ready = next(condition for condition in node["status"]["conditions"] if condition["type"] == "Ready")
    taints = {(taint["key"], taint["effect"]) for taint in node["spec"].get("taints") or ()}
    return ready["status"] == "Unknown" and {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")} <= taints


async def _is_driven_out(run: ElasticRun, name: str) -> bool:
    """Return whether the pod is being deleted because of a taint. It stays, because nobody on its node can end it."""
    pod: dict[str, Any] = await run.kube.get(PODS, name, namespace=NAMESPACE)
    told = [condition["reason"] for condition in pod["status"]["conditions"] if condition["type"] == "DisruptionTarget"]
    return "deletionTimestamp" in pod["metadata"] and told == ["DeletionByTaintManager"]
