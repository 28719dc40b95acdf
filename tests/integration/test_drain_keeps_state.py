"""Drain the node with all workers of a job. Replacements are Ready only once they have the training's state, so no step is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from etcd_server import needs_etcd
from grounds import Ground
from installed_etcd import etcd_on_path
from laptop import until

from elastic.api.names import JOB_NAME
from elastic.kube.nodes import cordon, drain
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
DRAINED_WITHIN_S = 240.0
"""Seconds for a drain. The replacements import torch, and then all start their training again, on a machine that may be busy."""


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with etcd_on_path(), ground.cluster(tmp_path_factory.mktemp("drained"), nodes=2) as running:
        yield running


async def workers_on(run: ElasticRun, node: str) -> list[str]:
    """Return the Ready workers on a node."""
    pods = (await run.kube.list(PODS, namespace=NAMESPACE, labels=f"{JOB_NAME}={run.key.name}")).items
    conditions = {pod["metadata"]["name"]: pod["status"].get("conditions") or () for pod in pods if pod["spec"].get("nodeName") == node}
    return [name for name, found in conditions.items() if any(c["type"] == "Ready" and c["status"] == "True" for c in found)]


@pytest.mark.parametrize(
    ("workers", "drains", "backend"),
    [
        (1, 1, "elastic"),
        pytest.param(2, 1, "elastic", marks=pytest.mark.full),
        pytest.param(1, 2, "elastic", marks=pytest.mark.full),
        pytest.param(1, 2, "etcd", marks=[pytest.mark.full, needs_etcd]),
        pytest.param(2, 1, "etcd", marks=[pytest.mark.full, needs_etcd]),
    ],
)
async def test_a_drain_of_the_node_with_all_workers_loses_no_steps(cluster: LocalCluster, workers: int, drains: int, backend: str) -> None:
    policy = {"minReplicas": workers, "maxReplicas": workers, "rdzvBackend": backend}
    async with elastic_run(cluster, f"drained-{workers}-{backend}", workers=workers, steps=5000, **policy) as run:
        first, second = "node-0", "node-1"
        await cordon(run.kube, second)
        await run.step(5, world=workers)
        for node, other in ((first, second), (second, first))[:drains]:

            async def all_are_there(node: str = node) -> bool:
                return len(await workers_on(run, node)) == workers

            await until(all_are_there, f"{workers} Ready workers on {node}")
            await cordon(run.kube, other, is_cordoned=False)
            worlds = run.training.worlds
            await drain(run.kube, node, tell=print, within_s=DRAINED_WITHIN_S)
            await run.new_world(workers, after=worlds)
        assert run.training.repeated == 0
        assert set(await run.restarts()) <= {"disruption", "plan"}
        for node in (first, second):
            await cordon(run.kube, node, is_cordoned=False)
