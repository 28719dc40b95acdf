"""Let a HorizontalPodAutoscaler carry out the autoscaler's policy: a job grows by its throughput, and makes room for a pod of priority.

This runs on the laptop cluster, and with the API server, the autoscaling controller and the scheduler of a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from elastic_runs import elastic_run
from grounds import Ground
from laptop import NAMESPACE, container, get, pod, until
from real_servers import machine_address

from elastic.api.rights import AUTOSCALER, SYSTEM
from elastic.api.scaling import MANAGER
from elastic.kube.client import Kube
from elastic.kube.resources import HORIZONTAL_POD_AUTOSCALERS, LEASES, PODS, PRIORITY_CLASSES
from elastic.local import LocalCluster
from elastic.local.furnishing import offer_metrics, withdraw_metrics
from elastic.local.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(900)]
GROWS_S = 600.0


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("hpa"), nodes=1, gpus=4, autoscaler_period_s=2) as running:
        yield running


async def test_a_job_grows_on_its_throughput_and_gives_room_to_a_more_important_pod(
    ground: Ground, cluster: LocalCluster, kube: Kube, unique: str, tmp_path: Path
) -> None:
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"first-{unique}"}, "value": 1000}
    await kube.create(PRIORITY_CLASSES, important | {"preemptionPolicy": "Never"})
    policy = {"through": "hpa", "cooldownSeconds": 5, "minGainPercent": 20}
    served = standby(cluster, kube, tmp_path / "standby.log") if ground.assets else contextlib.nullcontext()
    async with (
        served,
        elastic_run(cluster, f"gives-{unique}", workers=1, steps=10**6, step_s=0.5, gpus=1, maxReplicas=4, scalingPolicy=policy) as run,
    ):
        await run.training.until("a world of 4", lambda t: t.world == 4, within_s=GROWS_S)
        server = container("sleep", "1000", resources={"limits": {"nvidia.com/gpu": "1"}})
        await kube.create(PODS, pod(f"server-{unique}", server, priorityClassName=f"first-{unique}"), namespace=NAMESPACE)
        await until(lambda: runs(kube, f"server-{unique}"), "the more important pod runs", within_s=200)
        await run.world(3)
        await run.more_steps(40)  # ten looks of the HorizontalPodAutoscaler, which once took the room back at once
        assert run.training.world == 3
        assert run.training.repeated == 0
        job = await kube.get(run.key.resource, run.key.name, namespace=NAMESPACE)
        assert MANAGER not in {entry["manager"] for entry in job["metadata"]["managedFields"] if entry.get("subresource") == "scale"}
        hpa = await kube.get(HORIZONTAL_POD_AUTOSCALERS, run.key.name, namespace=NAMESPACE)
        assert hpa["status"]["desiredReplicas"] == 3
        await kube.delete(PODS, f"server-{unique}", namespace=NAMESPACE, grace_s=0)


async def runs(kube: Kube, name: str) -> bool:
    found = await get(kube, name)
    return found is not None and found["status"].get("phase") == "Running"


@contextlib.asynccontextmanager
async def standby(cluster: LocalCluster, kube: Kube, log: Path) -> AsyncIterator[None]:
    """Run a replica next to the autoscaler that decides.

    It only serves the metrics API at an address that a real API server reaches. Somebody else holds the Lease for longer than the test.
    """
    spec = {"holderIdentity": "the cluster's own", "leaseDurationSeconds": 3600, "renewTime": "2030-01-01T00:00:00.000000Z"}
    lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": AUTOSCALER}, "spec": spec}
    await kube.create(LEASES, lease, namespace=SYSTEM)
    port = free_ports(1)[0]
    words = Path(f"/proc/{cluster.processes()['autoscaler']}/cmdline").read_text().rstrip("\0").split("\0")
    place = words.index("--ready-file") if "--ready-file" in words else None
    words = words if place is None else words[:place] + words[place + 2 :]
    options = ["--metrics-api-port", str(port), "--leader-elect", "--lease-duration", "3600"]
    with log.open("wb") as output:
        replica = await asyncio.create_subprocess_exec(*words, *options, stdout=output, stderr=output)
    try:
        await offer_metrics(kube, machine_address(), port)
        yield
    finally:
        await withdraw_metrics(kube)
        with contextlib.suppress(ProcessLookupError):
            os.kill(replica.pid, signal.SIGTERM)
        await replica.wait()
        await kube.delete(LEASES, AUTOSCALER, namespace=SYSTEM)
