"""kopf's watch of the jobs on a real API server is the only one, misses no deletion, and begins once a kind is installed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_process import ApiProcess, running
from control_plane import controller, install_crds
from laptop import NAMESPACE, get, until

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.watching.fed_view import FedView
from elastic_training.controller.watching.kopf_watch import KopfWatch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
KIND = "PyTorchJob"
MANY = 1000
WATCH = {"method": "GET", "path": ".*/pytorchjobs", "agent": "^elastic-controller/kopf"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiProcess]:
    with running(tmp_path, "--faults", "1") as started:
        yield started


def job(name: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "any"}]}}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": KIND, "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def watched(kube: Kube) -> AsyncIterator[FedView]:
    view = FedView(kube, JOBS[KIND], project=lambda raw: raw, namespace=None, indexes={})
    tasks = [asyncio.create_task(view.run()), asyncio.create_task(KopfWatch(kube, {KIND: view}, namespace=None).run())]
    try:
        yield view
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: not any(thread.name == "kopf" for thread in threading.enumerate()), "kopf's thread has ended")


def connections(port: int) -> int:
    """Return the number of connections of this process to this port."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[2].rpartition(":")[2], 16) == port}
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this look is gone
            count += str(entry.readlink()) in sockets
    return count


def names(view: FedView) -> list[str]:
    return sorted(name for _, name in list(view.keys()))


async def test_the_last_job_that_is_deleted_in_a_gap_of_the_watch_goes_from_the_view(server: ApiProcess) -> None:
    """The handlers of kopf hear nothing of an empty list, and nothing of a deletion that the watch missed."""
    await install_crds(server.kubeconfig, kinds="pytorchjobs")
    async with connect(server.kubeconfig) as kube, server.client() as admin:
        await admin.ask("PUT", "/faults", [WATCH | {"end_watch_after_s": 0.3}])
        async with watched(kube) as view:
            await view.wait_synced()
            await kube.create(JOBS[KIND], job("one"), namespace=NAMESPACE)
            await until(lambda: names(view) == ["one"], "the job is in view")
            await admin.ask("PUT", "/faults", [WATCH | {"drop": True, "times": MANY}])

            async def is_cut_off() -> bool:
                return (await admin.ask("GET", "/faults"))[1][0]["times"] < MANY

            await until(is_cut_off, "kopf's watch is cut off")
            await kube.delete(JOBS[KIND], "one", namespace=NAMESPACE)
            assert names(view) == ["one"]
            await admin.ask("PUT", "/faults", [WATCH | {"gone": True, "times": 1}])
            await until(lambda: names(view) == [], "what was deleted in the gap is gone from the view")


async def test_a_client_that_ends_leaves_no_connection_to_a_server_that_is_silent(server: ApiProcess) -> None:
    """A loop ended while a watch's connection waited for the server's part of the end of TLS.

    The connection stayed open until it was collected, in the middle of another test.
    """
    await install_crds(server.kubeconfig, kinds="pytorchjobs")
    async with connect(server.kubeconfig) as kube:
        version = (await kube.list(JOBS[KIND])).resource_version
        watch = asyncio.create_task(anext(kube.watch(JOBS[KIND], resource_version=version)))
        async with watched(kube) as view:
            await view.wait_synced()
            await until(lambda: connections(server.port) >= 2, "kopf's watch is there beside ours")
            server.signal(signal.SIGSTOP)
        watch.cancel()
        await asyncio.wait([watch])
    left = connections(server.port)
    server.signal(signal.SIGCONT)
    assert left == 0


async def test_a_kind_that_is_installed_later_is_watched_and_kopf_says_nothing_of_signals(server: ApiProcess, tmp_path: Path) -> None:
    asked = {"method": "GET", "path": ".*/kubeflow.org/.*", "agent": "^elastic-controller", "times": MANY}
    process = controller(server.kubeconfig, "--enable-kinds", KIND, folder=tmp_path)
    async with server.client() as admin:
        await admin.ask("PUT", "/faults", [asked])
        starting = asyncio.create_task(asyncio.to_thread(process.__enter__))

        async def is_asked_again() -> bool:
            return (await admin.ask("GET", "/faults"))[1][0]["times"] <= MANY - 2

        await until(is_asked_again, "the controller asks for its kind again and again")
    assert not starting.done(), "it cannot be ready without its kind"
    await install_crds(server.kubeconfig, kinds="pytorchjobs")
    log = await starting
    try:
        async with connect(server.kubeconfig) as kube:
            await kube.create(JOBS[KIND], job("late"), namespace=NAMESPACE)
            await until(lambda: get(kube, "late-master-0"), "the job has its pod")
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)
    assert "OS signals" not in log.read_text()
