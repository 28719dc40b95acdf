"""Two controllers run, and one works. It is killed, stops in good order, or stands still and wakes up too late."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import LEASES
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.running.process import LEASE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
LEASE_S = "6"
"""Short, and long enough for a leader on a busy machine to renew its Lease in time."""
NAMESPACE = "default"
WRITES = "POST|PUT|PATCH|DELETE"
NO_LEASE = "(?!.*/leases).*"


class Candidate:
    """A controller process that works when the Lease is its own."""

    def __init__(self, kubeconfig: Path, folder: Path, name: str, *, lease_s: str = LEASE_S) -> None:
        ready, self.log = folder / f"{name}.ready", folder / f"{name}.log"
        flags = ["--leader-elect", "--lease-namespace", NAMESPACE, "--lease-duration", lease_s, "--enable-kinds", "PyTorchJob"]
        command = [
            sys.executable,
            "-m",
            "elastic_training.controller.running.main",
            "--kubeconfig",
            str(kubeconfig),
            "--ready-file",
            str(ready),
            *flags,
        ]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        wait_for(ready, self.process, self.log)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def said(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.log.read_text().splitlines() if line.startswith("{")]

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


async def renewed(kube: Kube, *, times: int) -> None:
    """Wait until the Lease was renewed so often."""
    seen: set[str] = set()

    async def is_so() -> bool:
        seen.add((await kube.get(LEASES, LEASE, namespace=NAMESPACE))["spec"]["renewTime"])
        return len(seen) > times

    await until(is_so, f"the lease is renewed {times} times")


async def is_served(kube: Kube, name: str) -> None:
    """Wait until a new job gets its pod, because a controller works."""
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


@contextlib.asynccontextmanager
async def slow_path(server: ApiProcess, *, one_way_s: Callable[[], float]) -> AsyncIterator[Path]:
    """Yield a kubeconfig for a proxy of the API server that delays every piece, each way."""
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        kept: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, piece = await kept.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            with contextlib.suppress(OSError):
                while piece := await reader.read(65536):
                    kept.put_nowait((loop.time() + one_way_s(), piece))
            kept.put_nowait((loop.time(), b""))
            with contextlib.suppress(OSError):
                await delivering
        finally:
            delivering.cancel()
            writer.transport.abort()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        for each in (carry(reader, back), carry(there, writer)):
            task = asyncio.create_task(each)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    kubeconfig = server.folder / "slow.kubeconfig"
    kubeconfig.write_text(server.kubeconfig.read_text().replace(f"127.0.0.1:{server.port}", f"127.0.0.1:{port}"))
    try:
        yield kubeconfig
    finally:
        proxy.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.1)


async def test_a_leader_whose_requests_take_1_5_s_each_way_keeps_the_lease_and_says_that_renewals_are_slow(
    server: ApiProcess, kube: Kube
) -> None:
    delay_s = 0.6
    async with slow_path(server, one_way_s=lambda: delay_s) as kubeconfig:
        # In a thread: it waits for the ready file, and the proxy runs in this loop.
        slow = await asyncio.to_thread(Candidate, kubeconfig, server.folder, "slow", lease_s="15")
        try:
            await leads(kube, slow)
            delay_s = 1.5
            standby = await asyncio.to_thread(Candidate, server.kubeconfig, server.folder, "standby", lease_s="15")
            try:
                term = (await kube.get(LEASES, LEASE, namespace=NAMESPACE))["spec"]["leaseTransitions"]
                await renewed(kube, times=4)
                lease = await kube.get(LEASES, LEASE, namespace=NAMESPACE)
                assert slow.process.poll() is None, slow.log.read_text()
                assert slow.holds(lease)
                assert lease["spec"]["leaseTransitions"] == term
                assert slow.said().count("renewals of the lease are slow") == 1
                assert standby.said().count("waits for the lease") == 1
                slow.signal(signal.SIGTERM)
                await leads(kube, standby)
            finally:
                standby.signal(signal.SIGKILL)
                standby.process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                slow.signal(signal.SIGKILL)
            await asyncio.to_thread(slow.process.wait)
