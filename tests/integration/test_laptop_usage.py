"""Read the usage of the laptop's pods and nodes from metrics.k8s.io and by `kubectl top`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from laptop import NAMESPACE, container, get, pod, until

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.quantity import parse
from elastic.kube.resources import PODS, Object, Resource
from elastic.local import LocalCluster
from elastic.local.agent.usage import READ_EVERY_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", kind="PodMetrics")
NODE_METRICS = Resource("metrics.k8s.io", "v1beta1", "nodes", namespaced=False, kind="NodeMetrics")
BUSY = "import os; os.fork(); b = bytearray(64 << 20); b[::4096] = b'x' * (len(b) // 4096)\nwhile True: pass"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=2, control_plane=False) as running:
        yield running


async def measured(kube: Kube, name: str) -> Object | None:
    return await get(kube, name, resource=POD_METRICS)


async def test_cpu_and_memory_of_each_container_are_served_and_kubectl_top_shows_them(
    kube: Kube, cluster: LocalCluster, unique: str
) -> None:
    busy, idle = f"busy-{unique}", f"idle-{unique}"
    pair = [container(sys.executable, "-c", BUSY, name="busy"), container("sleep", "600", name="quiet")]
    await kube.create(PODS, pod(busy, *pair, labels={"kind": "busy"}), namespace=NAMESPACE)
    await kube.create(PODS, pod(idle, container("sleep", "600")), namespace=NAMESPACE)

    async def filled() -> Object | None:
        """Return the metrics once both processes use their memory, because a look may come while they start."""
        found = await measured(kube, busy)
        used = {c["name"]: parse(c["usage"]["memory"]) for c in (found or {"containers": ()})["containers"]}
        return found if used.get("busy", 0) > 2 * (64 << 20) else None

    found = await until(filled, "metrics of the busy pod with the memory of both processes", within_s=60)
    await until(lambda: measured(kube, idle), "metrics of the idle pod")
    used = {c["name"]: c["usage"] for c in found["containers"]}
    assert set(used) == {"busy", "quiet"}
    # Two processes share the cores that this machine can spare.
    assert 0.05 < parse(used["busy"]["cpu"]) < 2.5
    assert parse(used["quiet"]["cpu"]) < parse("50m")
    assert parse(used["busy"]["memory"]) < 400 << 20, "what both processes share is counted once"
    assert found["metadata"]["labels"] == {"kind": "busy"}
    assert 0 < float(found["window"].removesuffix("s")) < 3 * READ_EVERY_S
    chosen = (await kube.list(POD_METRICS, namespace=NAMESPACE, labels="kind=busy")).items
    assert [item["metadata"]["name"] for item in chosen] == [busy]
    nodes = {item["metadata"]["name"]: parse(item["usage"]["cpu"]) for item in (await kube.list(NODE_METRICS)).items}
    assert len(nodes) == 2
    assert max(nodes.values()) > 0.05
    if (kubectl := shutil.which("kubectl")) is not None:
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        for command, words in ((["top", "pods", "--containers"], ("busy", "quiet")), (["top", "nodes"], tuple(nodes))):
            shown = await asyncio.to_thread(
                subprocess.run, [kubectl, *command], env=environment, capture_output=True, text=True, timeout=30
            )
            assert shown.returncode == 0, shown.stderr
            assert all(word in shown.stdout for word in words), shown.stdout
    for name in (busy, idle):
        await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_pod_that_does_not_run_has_no_metrics(kube: Kube, unique: str) -> None:
    with pytest.raises(KubeError, match=f'podmetrics.metrics.k8s.io "{NAMESPACE}/gone-{unique}" not found'):
        await kube.get(POD_METRICS, f"gone-{unique}", namespace=NAMESPACE)
    with pytest.raises(KubeError, match="the server does not allow this method"):
        await kube.create(POD_METRICS, {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics"}, namespace=NAMESPACE)
