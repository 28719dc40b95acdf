"""Two controllers, of which one works: what happens when it is killed, stops in good order, or stands still and wakes up too late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from api_process import ApiProcess, running
from control_plane import ROOT, install_crds, wait_for
from laptop import get, until

from controller.running.process import LEASE
from controller.watching.keys import JOBS
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import LEASES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
LEASE_S = "6"
"""Short, and long enough for a leader on a busy machine to renew its Lease in time."""
NAMESPACE = "default"
WRITES = "POST|PUT|PATCH|DELETE"
NO_LEASE = "(?!.*/leases).*"


class Candidate:
    """A controller process that works when the Lease is its own."""

    def __init__(self, kubeconfig: Path, folder: Path, name: str) -> None:
        ready, self.log = folder / f"{name}.ready", folder / f"{name}.log"
        flags = ["--leader-elect", "--lease-namespace", NAMESPACE, "--lease-duration", LEASE_S, "--enable-kinds", "PyTorchJob"]
        command = [sys.executable, "-m", "controller.running.main", "--kubeconfig", str(kubeconfig), "--ready-file", str(ready), *flags]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        wait_for(ready, self.process, self.log)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def holds(self, lease: dict | None) -> bool:
        return str((lease or {}).get("spec", {}).get("holderIdentity", "")).endswith(f"_{self.process.pid}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with running(tmp_path_factory.mktemp("api"), "--faults", "1") as started:
        asyncio.run(install_crds(started.kubeconfig, kinds="pytorchjobs"))
        yield started


@pytest.fixture
async def kube(server: ApiProcess) -> AsyncIterator[Kube]:
    async with connect(server.kubeconfig) as client:
        yield client


@pytest.fixture
def start(server: ApiProcess) -> Iterator[Callable[[str], Candidate]]:
    started: list[Candidate] = []

    def start(name: str) -> Candidate:
        started.append(Candidate(server.kubeconfig, server.folder, name))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.signal(signal.SIGKILL)
        one.process.wait()


async def leads(kube: Kube, candidate: Candidate) -> None:
    async def is_so() -> bool:
        return candidate.holds(await get(kube, LEASE, resource=LEASES))

    await until(is_so, f"{candidate.log.stem} holds the lease")


async def is_served(kube: Kube, name: str) -> None:
    """A new job gets its pod: somebody works."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "any"}]}}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}
    await kube.create(JOBS["PyTorchJob"], job, namespace=NAMESPACE)

    def has_pod() -> Awaitable[object]:
        return get(kube, f"{name}-master-0")

    await until(has_pod, f"job {name} has its pod")


async def test_another_one_works_on_when_the_leader_is_killed_and_when_it_stops(kube: Kube, start: Callable[[str], Candidate]) -> None:
    first = start("first")
    await leads(kube, first)
    await is_served(kube, "one")
    second = start("second")
    first.signal(signal.SIGKILL)
    await is_served(kube, "two")
    await leads(kube, second)

    third = start("third")
    second.signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    await is_served(kube, "three")
    await leads(kube, third)


async def test_a_leader_that_stood_still_until_another_led_writes_nothing_and_ends(
    server: ApiProcess, kube: Kube, start: Callable[[str], Candidate]
) -> None:
    stopped = start("stopped")
    await leads(kube, stopped)
    await is_served(kube, "before")
    other = start("other")
    stopped.signal(signal.SIGSTOP)
    await leads(kube, other)
    # It will wake up to news of work: a job of which it has not seen that the other one has done everything.
    await is_served(kube, "meanwhile")
    await kube.delete(JOBS["PyTorchJob"], "before", namespace=NAMESPACE)
    async with server.client() as admin:
        many = 1000
        rule = {"agent": f"_{stopped.process.pid}$", "method": WRITES, "path": NO_LEASE, "times": many}
        assert (await admin.ask("PUT", "/faults", [rule]))[0] == 200
        stopped.signal(signal.SIGCONT)
        assert stopped.process.wait(60) == 1, "another one leads, so it must end, and be started anew"
        _, rules = await admin.ask("GET", "/faults")
    assert [many - left["times"] for left in rules] == [0], stopped.log.read_text()
    assert other.holds(await get(kube, LEASE, resource=LEASES))
