"""The client and the cache against a scripted server on the loopback interface: what is sent, what is retried, what a gap does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest
from aiohttp import web
from served_api import pod, refusal, served

from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.pauses import pause_s
from elastic.kube.resources import PODS, SECRETS, Object


async def test_a_list_is_read_page_by_page() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.query["limit"] == "500"
        if "continue" not in request.query:
            return web.json_response({"items": [pod("a", 1)], "metadata": {"resourceVersion": "7", "continue": "more"}})
        return web.json_response({"items": [pod("b", 2)], "metadata": {"resourceVersion": "7"}})

    async with served(handler) as kube:
        listing = await kube.list(PODS, labels="x=y")
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"


async def test_a_pod_without_a_node_has_said_nothing_yet() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=204)

    async with served(handler) as kube:
        assert [chunk async for chunk in kube.logs("a", namespace="n")] == []


async def test_no_request_waits_for_the_end_of_streams() -> None:
    """`elastic run` of 200 jobs held 256 watches open, and took the API server for one that cannot be reached."""
    opened = asyncio.Semaphore(0)

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query and "follow" not in request.query:
            return web.json_response({"metadata": {"name": "a"}})
        response = web.StreamResponse()
        await response.prepare(request)
        opened.release()
        await asyncio.sleep(60)
        return response

    async def read(stream: AsyncIterator[object]) -> None:
        async for _ in stream:
            pass

    async with served(handler) as kube, asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(read(kube.watch(PODS, namespace="n"))) for _ in range(200)]
        streams += [tasks.create_task(read(kube.logs("a", namespace="n", follow=True))) for _ in range(100)]
        for _ in streams:
            await asyncio.wait_for(opened.acquire(), 20)
        assert await asyncio.wait_for(kube.get(PODS, "a", namespace="n"), 20) == {"metadata": {"name": "a"}}
        for stream in streams:
            stream.cancel()


ROOT = "/api/v1/namespaces/n/pods/a:80/proxy"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/metrics", "/metrics"),
        ("/m/x?name[]=y&z=%31#here", "/m/x?name%5B%5D=y&z=1"),
        ("/../../../secrets/key", "/secrets/key"),
        ("/%2e%2e/%2E%2e/../secrets", "/secrets"),
        ("/..%2f..%2fsecrets", "/..%2F..%2Fsecrets"),
        ("//other:1/x", "//other:1/x"),
        ("/@other/", "/@other/"),
        ("/", "/"),
    ],
)
async def test_a_page_of_a_pod_is_asked_for_below_that_pod(path: str, asked: str) -> None:
    """The path is a user's, and the right to ask is ours."""
    seen: list[tuple[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.raw_path, request.headers["Accept-Encoding"]))
        return web.Response(status=302, headers={"Location": "/elsewhere", "Set-Cookie": "of=pod"})

    async with served(handler) as kube, kube.asked_of_pod("a", path, namespace="n", port=80, timeout_s=20) as response:
        assert response.status == 302
    assert seen == [(ROOT + asked, "identity")]


@pytest.mark.parametrize("name", ["../secrets", "a/../b", "a?x", "a#", "%2e%2e", "a b"])
async def test_no_page_is_asked_of_what_is_no_name_of_a_pod(name: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        raise AssertionError("it was asked")

    async with served(handler) as kube:
        with pytest.raises(KubeError, match="is no name of an object"):
            async with kube.asked_of_pod(name, "/", namespace="n", port=80, timeout_s=20):
                pass


async def test_a_cookie_from_a_pod_is_not_sent_with_other_requests() -> None:
    cookies: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie"))
        return web.json_response({}, headers={"Set-Cookie": "of=pod; Path=/"})

    async with served(handler) as kube:
        named = Kube(replace(kube.access, server=kube.access.server.replace("127.0.0.1", "localhost")))
        for _ in range(2):
            async with named.asked_of_pod("a", "/", namespace="n", port=80, timeout_s=20):
                pass
        await named.close()
    assert cookies == [None, None]


async def test_a_request_that_begins_while_the_client_closes_does_not_break_that() -> None:
    """Requests and streams have connections of their own: the second kind appeared while the first was being closed."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"name": "a"}})

    async with served(handler) as kube:
        await kube.get(PODS, "a", namespace="n")
        first = kube._open()
        close = first.close

        async def closing() -> None:
            kube._open(2)
            await close()

        first.close = closing  # type: ignore[method-assign]
        await kube.close()
        assert (kube._sessions, first.closed) == ({}, True)


async def test_a_listed_object_says_its_kind_as_a_watched_one_does() -> None:
    """A controller that read `kind` worked while it watched, and broke when it was started while objects existed already."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"apiVersion": "v1", "kind": "PodList", "items": [pod("a", 1)], "metadata": {"resourceVersion": "7"}})

    async with served(handler) as kube:
        listing = await kube.list(PODS)
    assert (listing.items[0]["apiVersion"], listing.items[0]["kind"]) == ("v1", "Pod")


async def test_a_busy_server_is_asked_again_and_an_eviction_that_is_refused_is_not() -> None:
    calls: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        calls.append(request.path)
        return refusal(429, "TooManyRequests") if len(calls) < 3 else web.json_response({"metadata": {"name": "a"}})

    async with served(handler) as kube:
        await kube.create(PODS, pod("a", 1), namespace="n")
        assert len(calls) == 3
        calls.clear()
        with pytest.raises(KubeError, match="TooManyRequests it is"):
            await kube.create(PODS, {}, namespace="n", name="a", subresource="eviction")
    assert calls == ["/api/v1/namespaces/n/pods/a/eviction"]


@pytest.mark.parametrize(("asked_s", "least", "most"), [(None, 0.0, 5.0), (2, 2.0, 2.2), (30, 30.0, 30.2), (100_000, 60.0, 60.2)])
def test_a_busy_server_is_given_the_time_it_asks_for_within_reason(asked_s: int | None, least: float, most: float) -> None:
    body = {} if asked_s is None else {"details": {"retryAfterSeconds": asked_s}}
    error = KubeError(code=429, reason="TooManyRequests", message="later", body=body)
    for attempt in range(6):
        assert least <= pause_s(error, attempt) <= most


async def test_a_write_whose_connection_broke_is_not_sent_twice_but_a_read_is() -> None:
    calls: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        calls.append(request.method)
        if len(calls) == 1 or request.method != "GET":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"metadata": {"name": "a"}})

    async with served(handler) as kube:
        await kube.get(PODS, "a", namespace="n")
        with pytest.raises(KubeError) as caught:
            await kube.create(PODS, pod("a", 1), namespace="n")
    assert calls == ["GET", "GET", "POST"]
    assert caught.value.reason == "Unreachable"


@pytest.mark.parametrize("name", ["../../other/secrets/login", "..", ".", "", "a/b", "%2e%2e", "a?b", "a#b", "a\\\\b", "a\\nb"])
async def test_a_name_that_somebody_chose_is_no_path_to_another_object(name: str) -> None:
    """The controller read the Secret of another namespace for a job whose rdzvSecret began with `../`."""

    async def handler(request: web.Request) -> web.Response:
        raise AssertionError(f"{request.path_qs} was asked")

    async with served(handler) as kube:
        for namespace, other in (("n", name), (name, "n")):
            with pytest.raises(KubeError, match="is no name of an object"):
                await kube.get(SECRETS, other, namespace=namespace)


async def test_patches_and_deletes_say_what_they_mean() -> None:
    seen: list[tuple[str, str, object]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path_qs, request.content_type, orjson.loads(await request.read())))
        return web.json_response({})

    async with served(handler) as kube:
        await kube.patch(PODS, "a", {"status": {}}, namespace="n", subresource="status")
        await kube.patch(PODS, "a", {}, namespace="n", kind=Patch.APPLY, field_manager="me", force=True)
        await kube.delete(PODS, "a", namespace="n", grace_s=0, uid="u")
    assert seen[0] == ("/api/v1/namespaces/n/pods/a/status", "application/merge-patch+json", {"status": {}})
    assert seen[1][:2] == ("/api/v1/namespaces/n/pods/a?fieldManager=me&force=true", "application/apply-patch+yaml")
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}
    assert seen[2][2] == options


class ScriptedPods:
    """A pods collection whose watches play one prepared batch each, then end; a batch is events, or None for `410 Gone`."""

    def __init__(self, lists: list[Object], watches: list[list[Object] | None]) -> None:
        self.lists, self.watches, self.asked = lists, watches, []
        self.done = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(self.lists.pop(0))
        self.asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.watches:
            self.done.set()
            await asyncio.sleep(3600)
        batch = self.watches.pop(0)
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
        for event in [gone] if batch is None else batch:
            await response.write(orjson.dumps(event) + b"\n")
        return response


def listing(version: int, *items: Object) -> Object:
    return {"items": list(items), "metadata": {"resourceVersion": str(version)}}


@asynccontextmanager
async def running(script: ScriptedPods) -> AsyncIterator[tuple[Cache[str], list[ViewChange[str]]]]:
    changes: list[ViewChange[str]] = []
    async with served(script.answer) as kube:
        cache: Cache[str] = Cache(kube, PODS, project=lambda o: o["metadata"]["uid"], indexes={"first": lambda uid: [uid[-1]]})
        cache.subscribe(changes.append)
        task = asyncio.create_task(cache.run())
        try:
            yield cache, changes
        finally:
            task.cancel()


async def test_a_cache_follows_the_watch_and_resumes_from_the_last_bookmark() -> None:
    events = [
        {"type": "ADDED", "object": pod("b", 11)},
        {"type": "DELETED", "object": pod("a", 12)},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
    ]
    script = ScriptedPods([listing(10, pod("a", 5))], [events])
    async with running(script) as (cache, changes):
        await script.done.wait()
        assert cache.synced
        assert [*cache.keys()] == [("n", "b")]
        assert cache.by("first", "b") == ["uid-b"]
        assert cache.by("first", "a") == []
        assert await cache.reached("20", timeout_s=0)
        assert not await cache.reached("21", timeout_s=0)
    assert script.asked == ["10", "20"]
    assert [(c.old, c.new) for c in changes] == [(None, "uid-a"), (None, "uid-b"), ("uid-a", None)]


async def test_objects_that_vanished_or_were_made_again_while_the_watch_was_gone_are_told() -> None:
    script = ScriptedPods([listing(10, pod("a", 5), pod("b", 6)), listing(30, pod("b", 25, uid="new-b"))], [None])
    async with running(script) as (cache, changes):
        await script.done.wait()
        assert cache.get("n", "a") is None
        assert cache.get("n", "b") == "new-b"
    assert [(c.old, c.new) for c in changes[2:]] == [("uid-b", None), (None, "new-b"), ("uid-a", None)]
