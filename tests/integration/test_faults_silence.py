"""Peers that take a connection and never answer: a rendezvous server, and the API server's watch of services. Other jobs go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_process import ApiProcess, running
from control_plane import controller, install_crds
from laptop import NAMESPACE, get, until

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.local.installation import ensure_installation
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SILENT_JOBS = 6
SOON_S = 30.0
"""One worker that waits for each of the silent jobs, as it did, needs six times ten seconds."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiProcess]:
    with running(tmp_path, "--faults", "1") as started:
        asyncio.run(install_crds(started.kubeconfig, kinds="pytorchjobs"))
        yield started


def job(name: str, *, is_elastic: bool) -> dict[str, Any]:
    replica = {"replicas": 2, "template": {"spec": {"containers": [{"name": "pytorch", "image": "any", "command": ["torchrun", "t.py"]}]}}}
    spec: dict[str, Any] = {"pytorchReplicaSpecs": {"Worker": replica}}
    if is_elastic:
        spec["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3}
    else:
        spec["pytorchReplicaSpecs"]["Master"] = replica | {"replicas": 1}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}


async def is_served_soon(kube: Kube, name: str) -> None:
    await kube.create(JOBS["PyTorchJob"], job(name, is_elastic=False), namespace=NAMESPACE)
    await until(lambda: get(kube, f"{name}-master-0"), f"job {name} has its pod", within_s=SOON_S)


@contextlib.asynccontextmanager
async def black_hole() -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """Take every connection and say nothing. Yield the port and the connections."""
    came: list[asyncio.StreamWriter] = []

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], came
    finally:
        listening.close()
        for writer in came:
            writer.transport.abort()
        await asyncio.sleep(0.1)


async def test_a_rendezvous_server_that_never_answers_stalls_no_job(server: ApiProcess, tmp_path: Path) -> None:
    installation = tmp_path / "installation"
    ensure_installation(installation, addresses=())
    async with black_hole() as (port, came), connect(server.kubeconfig) as kube:
        flags = ["--workers", "1", "--enable-kinds", "PyTorchJob", "--installation", str(installation)]
        flags += ["--rendezvous-url", f"https://127.0.0.1:{port}", "--rendezvous-endpoint", f"127.0.0.1:{port}"]
        process = controller(server.kubeconfig, *flags, folder=tmp_path)
        await asyncio.to_thread(process.__enter__)
        try:
            for number in range(SILENT_JOBS):
                await kube.create(JOBS["PyTorchJob"], job(f"elastic-{number}", is_elastic=True), namespace=NAMESPACE)
            await is_served_soon(kube, "static")
            for number in range(SILENT_JOBS):
                name = f"elastic-{number}-worker-0"
                await until(lambda name=name: get(kube, name), f"{name} is there", within_s=SOON_S)
            assert came, "the controller did try to reach the server"
        finally:
            await asyncio.to_thread(process.__exit__, None, None, None)


async def test_a_watch_of_services_that_stalls_keeps_no_other_job_waiting(server: ApiProcess, tmp_path: Path) -> None:
    async with server.client() as admin, connect(server.kubeconfig) as kube:
        services = {"method": "GET", "path": "/api/v1/services", "agent": "^elastic-controller/"}
        assert (await admin.ask("PUT", "/faults", [services | {"end_watch_after_s": 0.5}]))[0] == 200
        process = controller(server.kubeconfig, "--workers", "1", "--enable-kinds", "PyTorchJob", folder=tmp_path)
        await asyncio.to_thread(process.__enter__)
        try:
            assert (await admin.ask("PUT", "/faults", [services | {"latency_s": 200.0, "times": 100}]))[0] == 200

            async def is_stalled() -> bool:
                return (await admin.ask("GET", "/faults"))[1][0]["times"] < 100

            await until(is_stalled, "the controller's watch hangs")
            for number in range(SILENT_JOBS):
                await kube.create(JOBS["PyTorchJob"], job(f"unseen-{number}", is_elastic=False), namespace=NAMESPACE)
            await is_served_soon(kube, "static")
        finally:
            await asyncio.to_thread(process.__exit__, None, None, None)
