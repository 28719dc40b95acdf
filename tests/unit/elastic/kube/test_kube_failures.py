"""Failures of the Kubernetes layer: answers that break off, watches that end at once, credential programs that hang or refuse."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from arbitrary_json import anything, places, planted
from hypothesis import given
from hypothesis import strategies as st
from round_job import JOB, KEY, NOW
from served_api import pod, served
from test_kube_access import program

from elastic.api.job import JobStatus
from elastic.api.kinds import KINDS
from elastic.api.names import JOB_NAME, OPERATOR_NAME
from elastic.kube.access import TokenCommand
from elastic.kube.answers import event_of, items_of
from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.decoding import MOST_DEPTH, cut, decoded
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, SERVICES, Object, Resource
from elastic_training.controller.acting.apply import Applier
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.actions import Create, Plan
from elastic_training.controller.facts.snapshot import pod_from
from elastic_training.controller.watching.kopf_answers import ShallowAnswer


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


def labelled(name: str, version: int, **status: Any) -> Object:
    labels = {OPERATOR_NAME: KINDS["PyTorchJob"].operator_name, JOB_NAME: "train"}
    return {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version), "labels": labels}, "status": status}


def deep(item: Object, levels: int) -> bytes:
    """Return the object with nested managed fields that a client made up; an API server stores up to 10,000 levels."""
    managed = b'"managedFields":[{"fieldsV1":' + b'{"f:a":' * levels + b"{}" + b"}" * levels + b"}]"
    return orjson.dumps(item).replace(b'"metadata":{', b'"metadata":{' + managed + b",")


@pytest.mark.parametrize("levels", [100, 990, 1100, 9000])
async def test_an_object_that_somebody_nested_deeply_blinds_nobody(levels: int) -> None:
    listed = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"2"},"items":[%s]}' % deep(labelled("listed", 1), levels)

    async def serve(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(body=listed, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        for item in (deep(labelled("watched", 3), levels), orjson.dumps(labelled("later", 4))):
            await response.write(b'{"type":"ADDED","object":%s}\n' % item)
        await asyncio.sleep(60)
        return response

    async with served(serve) as kube:
        cache = Cache(kube, PODS, project=lambda raw: raw["metadata"]["name"])
        running = asyncio.create_task(cache.run())
        assert await cache.reached("4", timeout_s=10)
        assert sorted(cache.list()) == ["later", "listed", "watched"]
        async with aiohttp.ClientSession(response_class=ShallowAnswer) as session:  # as kopf reads
            async with session.get(kube.access.server) as answer:
                assert [item["metadata"]["name"] for item in (await answer.json())["items"]] == ["listed"]
            async with session.get(kube.access.server, params={"watch": "true"}) as answer:
                async for chunk in answer.content.iter_chunked(1 << 20):
                    event = json.loads(chunk)
                    if event["object"]["metadata"]["name"] == "later":
                        break
        running.cancel()


@pytest.mark.parametrize("read", [cut, decoded])
@pytest.mark.parametrize("text", [b"]" * 500 + b"[" * 500, b'{"a":' * 1100, b'"' * 1001 + b"{" * 1000])
def test_a_body_that_is_no_json_stays_unchanged(read: Callable[[bytes], object], text: bytes) -> None:
    if read is cut:
        assert cut(text) is text
    else:
        with pytest.raises(orjson.JSONDecodeError):
            decoded(text)


def test_parts_that_are_nested_too_deep_are_null_and_all_else_stays() -> None:
    inner: object = None
    for _ in range(MOST_DEPTH):
        inner = {"a": inner}
    words = 'these are no levels: [{"\\' + "[" * 1000
    assert decoded(orjson.dumps(words)) == words
    assert json.loads(cut(b'[%s,%s,"%s"]' % (b'{"a":' * 1000 + b"[1,2]" + b"}" * 1000, b"1", b"{" * 9))) == [inner["a"], 1, "{" * 9]


UNREADABLE: list[Object] = [
    {"containerStatuses": [{"name": "pytorch", "state": {"terminated": {"exitCode": 1, "finishedAt": "0000-01-01T00:00:00Z"}}}]},
    {"containerStatuses": [None]},
    {"conditions": {"type": "Ready"}},
]


@pytest.mark.parametrize("status", UNREADABLE, ids=str)
async def test_a_pod_that_cannot_be_read_is_seen_as_before_and_hides_no_other(status: Object) -> None:
    """A client that may write one pod's status must not hide all pods from the controller."""
    events = (labelled("odd", 2, phase="Running"), labelled("odd", 3, phase="Failed", **status), labelled("later", 4, phase="Running"))

    async def serve(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        response = web.StreamResponse()
        await response.prepare(request)
        for item in events:
            await response.write(orjson.dumps({"type": "MODIFIED", "object": item}) + b"\n")
        await asyncio.sleep(60)
        return response

    async with served(serve) as kube:
        cache = Cache(kube, PODS, project=pod_from)
        running = asyncio.create_task(cache.run())
        assert await cache.reached("4", timeout_s=10)
        assert sorted(pod.name for pod in cache.list()) == ["later", "odd"]
        running.cancel()


@given(data=st.data())
def test_a_list_of_any_shape_is_refused_or_holds_objects(data: st.DataObject) -> None:
    page = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [pod("a", 1)]}
    wrong = planted(page, data.draw(st.sampled_from([at for at in places(page) if at])), data.draw(anything))
    try:
        found = items_of(wrong, "/p")
    except KubeError:
        return
    assert all(isinstance(item, dict) for item in found)


@given(event=anything | st.fixed_dictionaries({"type": anything | st.just("ERROR"), "object": anything}))
def test_an_event_of_any_shape_is_refused_or_holds_an_object(event: Any) -> None:
    refused = None
    try:
        assert isinstance(event_of(event, "/p").object, dict)
    except KubeError as error:
        refused = error
    assert refused is None or (refused.words and refused.retry_after_s != 0)


async def test_a_cache_goes_on_when_its_server_makes_sense_again() -> None:
    """An answer that no API server sends ended the watch's task and the process. A server behind an API service may send anything."""
    lists = [{"items": 5}, {"items": [None]}, {"items": [pod("a", 1)], "metadata": {"resourceVersion": "1"}}]
    watches = [b"[]\n", b'{"type": {}, "object": {}}\n', b'{"type": "ERROR", "object": {"code": [1], "details": 5}}\n']
    added = orjson.dumps({"type": "ADDED", "object": pod("b", 2)}) + b"\n"

    async def answers(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.Response(body=watches.pop(0) if watches else added)
        return web.json_response(lists.pop(0))

    async with served(answers) as kube:
        cache: Cache[str] = Cache(kube, PODS, project=lambda raw: str(raw["metadata"]["name"]))
        seen = asyncio.Event()
        cache.subscribe(lambda change: seen.set() if change.new == "b" else None)
        running = asyncio.create_task(cache.run())
        async with asyncio.timeout(20):
            await seen.wait()
        running.cancel()
    assert cache.list() == ["a", "b"]
