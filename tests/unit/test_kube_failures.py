"""Where the Kubernetes layer fails: answers that break off, watches that end at once, credential programs that hang or refuse."""

import asyncio
import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from test_controller_rounds import JOB, KEY, NOW
from test_kube_access import program
from test_kube_client import served

from controller.acting.apply import Applier
from controller.acting.event_recorder import EventRecorder
from controller.deciding.actions import Create, Plan
from elastic.api.job import JobStatus
from elastic.kube.access import TokenCommand
from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, SERVICES, Object, Resource


async def test_an_answer_that_breaks_off_is_an_error_as_every_lost_answer_is() -> None:
    async def breaks_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    async with served(breaks_off) as kube:
        with pytest.raises(KubeError) as broken:
            await kube.create(PODS, {}, namespace="n")
    assert broken.value.reason == "Unreachable"


async def test_a_watch_that_ends_as_soon_as_it_begins_is_not_opened_without_end() -> None:
    opened = 0

    async def ends(request: web.Request) -> web.Response:
        nonlocal opened
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        opened += 1
        return web.Response(body=b"")

    async with served(ends) as kube:
        cache: Cache[Object] = Cache(kube, PODS, project=lambda raw: raw)
        running = asyncio.create_task(cache.run())
        await cache.wait_synced()
        await asyncio.sleep(1.0)
        running.cancel()
    assert 1 <= opened <= 6


async def answered(_: web.Request) -> web.Response:
    return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})


def with_token(kube: Kube, source: TokenCommand) -> None:
    kube.access = dataclasses.replace(kube.access, token=source)


async def test_while_a_credential_program_hangs_requests_go_on_with_the_token_that_still_holds(tmp_path: Path) -> None:
    """It was waited for on the event loop, for up to a minute, and no Lease was renewed meanwhile."""
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    answer = '{"status": {"token": "t", "expirationTimestamp": "2026-01-01T12:15:00Z"}}'
    spec = program(tmp_path, answer)["exec"]
    source = TokenCommand(spec, clock=lambda: now)  # type: ignore[arg-type]
    async with served(answered) as kube:
        with_token(kube, source)
        await kube.list(PODS)
        script = tmp_path / "credentials"
        hold = tmp_path / "hold"
        hold.touch()
        script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\nwhile [ -e {hold} ]; do sleep 0.05; done\n"))
        now = datetime(2026, 1, 1, 12, 14, 30, tzinfo=UTC)
        async with asyncio.timeout(20):
            for _ in range(3):
                await kube.list(PODS)
        assert (tmp_path / "asked").read_text().count("asked") == 1, "the program has not answered yet"
        now = datetime(2026, 1, 1, 12, 16, tzinfo=UTC)
        waiting = asyncio.create_task(kube.list(PODS))
        began, turns = time.monotonic(), 0
        while time.monotonic() - began < 0.3:
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 5, "the loop goes on"
        assert not waiting.done()
        hold.unlink()
        async with asyncio.timeout(20):
            await waiting


async def test_a_credential_program_that_refuses_for_a_while_costs_the_cache_only_time(tmp_path: Path) -> None:
    """Its error ended the watch's task, and with it the process."""
    refusing = tmp_path / "refusing"
    refusing.touch()
    spec = program(tmp_path, '{"status": {"token": "t"}}')["exec"]
    script = tmp_path / "credentials"
    script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n[ -e {refusing} ] && exit 3\n"))
    async with served(answered) as kube:
        with_token(kube, TokenCommand(spec))  # type: ignore[arg-type]
        with pytest.raises(KubeError) as refused:
            await kube.list(PODS)
        assert refused.value.reason == "NoCredentials"
        cache: Cache[Object] = Cache(kube, PODS, project=lambda raw: raw)
        running = asyncio.create_task(cache.run())
        await asyncio.sleep(0.3)
        assert not running.done()
        refusing.unlink()
        async with asyncio.timeout(20):
            await cache.wait_synced()
        running.cancel()


class Breaking:
    """Breaks in an unexpected way at a service, while a pod's creation is under way."""

    def __init__(self) -> None:
        self.written: list[str] = []

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        if body["metadata"]["name"] == "bug":
            raise RuntimeError("a bug")
        await asyncio.sleep(0.05)
        self.written.append(body["metadata"]["name"])
        return body


async def test_nothing_is_written_after_a_reconcile_that_broke() -> None:
    kube = Breaking()
    applier = Applier(kube, EventRecorder(kube), None)  # type: ignore[arg-type]
    plan = Plan(tuple(Create(SERVICES, {"metadata": {"name": name}}) for name in ("slow", "bug")))
    with pytest.raises(ExceptionGroup):
        await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    await asyncio.sleep(0.1)
    assert kube.written == []
