"""A node that nothing is heard of any more is unreachable, its pods are driven out, and a job goes on elsewhere until it is back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.api.words import Cause
from elastic.kube.resources import NODES, PODS
from elastic.local import LocalCluster
from elastic.local.agent.asking import ask_agents
from elastic.local.agent.control import Add, Kill

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
    with ground.cluster(tmp_path_factory.mktemp("silence"), nodes=1, node_grace_s=GRACE_S) as running:
        yield running


async def test_a_job_goes_on_without_the_workers_of_a_silent_node_and_with_them_when_it_is_back(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "bereft", workers=1, steps=5000, pod={"tolerations": LEAVES_SOON}) as run:
        await run.step(1, world=1)
        # Only the second worker finds a place on the second node: the first node takes no more.
        await run.kube.patch(NODES, "node-0", {"spec": {"unschedulable": True}})
        ask_agents(cluster.data_dir, Add(name="spot"))
        await run.scale(2)
        await run.world(2)
        before = await run.pods()
        lost = run.pod_name(1)
        assert (await run.kube.get(PODS, lost, namespace=NAMESPACE))["spec"]["nodeName"] == "spot"

        ask_agents(cluster.data_dir, Kill(name="spot"))
        await run.world(1)
        await until(lambda: _is_unreachable(run), "the node is unreachable", within_s=PATIENCE_S)
        await until(lambda: _is_driven_out(run, lost), "its pod is driven out", within_s=PATIENCE_S)
        await run.more_steps(10)

        ask_agents(cluster.data_dir, Add(name="spot"))
        await run.world(2)
        after = await run.pods()
        assert after[run.pod_name(0)] == before[run.pod_name(0)]
        assert before[lost] not in after.values()
        assert not [cause for cause in await run.restarts() if Cause(cause).is_charged]


async def _is_unreachable(run: ElasticRun) -> bool:
    node = await run.kube.get(NODES, "spot")
    ready = next(condition for condition in node["status"]["conditions"] if condition["type"] == "Ready")
    taints = {(taint["key"], taint["effect"]) for taint in node["spec"].get("taints") or ()}
    return ready["status"] == "Unknown" and {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")} <= taints


async def _is_driven_out(run: ElasticRun, name: str) -> bool:
    """Nobody on its node can end it, so it stays as one that is being deleted."""
    pod: dict[str, Any] = await run.kube.get(PODS, name, namespace=NAMESPACE)
    told = [condition["reason"] for condition in pod["status"]["conditions"] if condition["type"] == "DisruptionTarget"]
    return "deletionTimestamp" in pod["metadata"] and told == ["DeletionByTaintManager"]
