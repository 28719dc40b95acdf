"""Two processes `elastic-autoscaler` serve behind one service. One of them is killed, or both.

The test uses the laptop's API server, and a real one if there is one (KUBEBUILDER_ASSETS). It plays the kubelet: a while after a process
has died, it withdraws the endpoint.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from control_plane import ROOT, wait_for
from metrics_groups import JOBS, PLACE, api_server, available, clear, deleted, discovered, furnish, gone, leave, publish, until, withdraw
from real_servers import machine_address

from elastic.api.scaling import MANAGER
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import LEASES, NAMESPACES, Object
from elastic_training.autoscale.running.process import LEASE
from elastic_training.autoscale.serving.answers import CUSTOM, EXTERNAL, VERSIONS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
LEASE_S = 30.0
"""The Lease outlasts everything that must go on while nobody leads, also on a busy machine."""
SEEN_LOST_S = 1.0
"""Seconds until the kubelet sees that a container has ended."""


class Replica:
    """One process. SIGKILL takes its socket, too."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.name = f"replica-{uuid.uuid4().hex[:6]}"
        self.log, ready = folder / f"{self.name}.log", folder / f"{self.name}.ready"
        with socket.create_server((machine_address(), 0), backlog=128) as opened, self.log.open("wb") as output:
            self.port = opened.getsockname()[1]
            flags = ["--leader-elect", "--lease-duration", str(LEASE_S), "--lease-namespace", PLACE.namespace, "--cluster-grows"]
            flags += ["--enable-kinds", "PyTorchJob", "--metrics-api-fd", str(opened.fileno()), "--ready-file", str(ready)]
            command = [sys.executable, "-m", "elastic_training.autoscale.running.main", "--kubeconfig", str(kubeconfig), *flags]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, pass_fds=(opened.fileno(),))
        wait_for(ready, self.process, self.log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Service:
    """The replicas behind the service, and the job that they scale."""

    def __init__(self, kube: Kube, kubeconfig: Path, folder: Path) -> None:
        self._kube, self._kubeconfig, self._folder = kube, kubeconfig, folder
        self._job = f"scaled-{uuid.uuid4().hex[:6]}"
        self.replicas: dict[int, Replica] = {}
        """The living replicas by their process."""

    async def start(self) -> None:
        replica = await asyncio.to_thread(Replica, self._kubeconfig, self._folder)
        self.replicas[replica.process.pid] = replica
        await publish(self._kube, replica.name, replica.port)

    async def leader(self) -> int:
        """Return the process that the Lease names, whether it lives or not."""
        lease = await self._kube.get(LEASES, LEASE, namespace=PLACE.namespace)
        return int(lease["spec"]["holderIdentity"].rpartition("_")[2] or 0)

    async def is_led(self) -> bool:
        return await self.leader() in self.replicas

    async def lose(self, pid: int) -> asyncio.Task[None]:
        """Kill the process by SIGKILL. The task ends when the endpoint is withdrawn."""
        replica = self.replicas.pop(pid)
        os.kill(pid, signal.SIGKILL)
        replica.process.wait()

        async def see() -> None:
            await asyncio.sleep(SEEN_LOST_S)
            await withdraw(self._kube, replica.name)

        return asyncio.create_task(see())

    async def submit(self, wanted: int) -> None:
        template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
        elastic = {"minReplicas": 1, "maxReplicas": 4, "scalingPolicy": _all_day(wanted)}
        spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
        job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": self._job}, "spec": spec}
        await self._kube.create(JOBS, job, namespace="default")

    async def ask_for(self, wanted: int) -> None:
        change = {"spec": {"elasticPolicy": {"scalingPolicy": _all_day(wanted)}}}
        await self._kube.patch(JOBS, self._job, change, namespace="default")

    async def is_scaled(self, size: int) -> None:
        """Wait until the autoscaler has written this size through /scale."""

        async def has() -> bool:
            job = await self._kube.get(JOBS, self._job, namespace="default")
            writers = {w["manager"] for w in job["metadata"]["managedFields"] if w.get("subresource") == "scale"}
            return bool(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == size) and writers == {MANAGER}

        await until(f"the job has {size} workers", has)

    async def values(self) -> list[str]:
        """Return the number of workers that the job wants by the external and the custom metric."""
        root = f"{VERSIONS[EXTERNAL][0]}/namespaces/default"
        external = await self._kube.request("GET", f"/apis/{EXTERNAL}/{root}/desired_workers", params={"labelSelector": f"job={self._job}"})
        root = f"{VERSIONS[CUSTOM][0]}/namespaces/default"
        custom = await self._kube.request("GET", f"/apis/{CUSTOM}/{root}/pytorchjobs.kubeflow.org/{self._job}/desired_workers")
        return [item["value"] for item in (*external["items"], *custom["items"])]

    async def answers(self, wanted: int) -> None:
        async def does() -> bool:
            return await discovered(self._kube) and await self.values() == [str(wanted)] * 2

        await until(f"discovery answers, and values say {wanted}", does)


def _all_day(replicas: int) -> Object:
    return {"policy": "schedule", "windows": [{"start": "00:00", "end": "00:00", "replicas": replicas}], "cooldownSeconds": 0}


@pytest.fixture(scope="module", params=["own", pytest.param("real", marks=pytest.mark.cluster)])
def kubeconfig(request: pytest.FixtureRequest) -> Iterator[Path]:
    with api_server(request) as kubeconfig:
        yield kubeconfig


@pytest_asyncio.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[Kube]:
    async with connect(kubeconfig) as client:
        yield client


@pytest_asyncio.fixture
async def service(kube: Kube, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[Service]:
    """Yield a service with a leading and a standby replica, and a job that the leader has scaled to 3."""
    await furnish(kube)
    service = Service(kube, kubeconfig, tmp_path)
    try:
        for _ in range(2):
            await service.start()
        await until("one leads", service.is_led)
        await service.submit(3)
        await service.is_scaled(3)
        await until("both groups are available", lambda: available(kube))
        await service.answers(3)
        yield service
    finally:
        for replica in service.replicas.values():
            replica.kill()
            await withdraw(kube, replica.name)
        await clear(kube)
        await kube.delete(LEASES, LEASE, namespace=PLACE.namespace)


async def test_while_nobody_leads_a_namespace_goes_and_values_are_served_and_then_the_other_one_scales(
    kube: Kube, service: Service, unique: str
) -> None:
    leader = await service.leader()
    withdrawing = await service.lose(leader)
    await service.ask_for(2)
    await deleted(kube, f"leaderless-{unique}")
    await withdrawing
    await service.answers(3)
    assert await service.leader() == leader, "nobody has taken the Lease of the dead one yet"

    await until("the other one leads", service.is_led)
    await service.is_scaled(2)
    await service.answers(2)


async def test_the_loss_of_the_replica_that_waits_holds_up_neither_namespaces_nor_decisions(
    kube: Kube, service: Service, unique: str
) -> None:
    leader = await service.leader()
    (standby,) = set(service.replicas) - {leader}
    withdrawing = await service.lose(standby)
    await service.ask_for(2)
    await deleted(kube, f"alone-{unique}")
    await withdrawing
    await service.is_scaled(2)
    await service.answers(2)
    assert await service.leader() == leader


async def test_without_any_replica_a_namespace_says_what_holds_it_up_and_goes_when_one_is_back(
    kube: Kube, service: Service, unique: str
) -> None:
    name = f"held-{unique}"
    for withdrawing in [await service.lose(pid) for pid in list(service.replicas)]:
        await withdrawing
    await leave(kube, name)

    async def is_held_up() -> bool:
        namespace = await kube.get(NAMESPACES, name)
        found = {c["type"]: c for c in namespace["status"].get("conditions") or ()}.get("NamespaceDeletionDiscoveryFailure", {})
        return (
            (found.get("status"), found.get("reason")) == ("True", "DiscoveryFailed")
            and namespace["status"]["phase"] == "Terminating"
            and all(f"{group}/{version}" in found["message"] for group, versions in VERSIONS.items() for version in versions)
        )

    await until("its condition names the groups that nobody serves", is_held_up)
    await service.start()
    await gone(kube, name)
    await service.answers(3)
