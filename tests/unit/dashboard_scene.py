"""Serve a dashboard over objects that a test names, from a real server on a real port, without an API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from cli_api import job, pod, running

from elastic.api.kinds import KINDS
from elastic.kube.access import Access
from elastic.kube.client import Kube
from elastic.runtime.one_time import OneTimeToken
from elastic_training.dashboard.history.book import Book
from elastic_training.dashboard.serving.changes import Reclaims
from elastic_training.dashboard.serving.guard import Guard
from elastic_training.dashboard.serving.news import NODES, News
from elastic_training.dashboard.serving.server import Server, ServingSettings
from elastic_training.dashboard.serving.sessions import LaptopSessions, Sessions
from elastic_training.dashboard.serving.stream import Streams
from elastic_training.dashboard.serving.views import Views
from elastic_training.dashboard.watching.observer import Observer

Object = dict[str, Any]
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
PLURALS = {"Pod": "_pods", "Node": "_nodes", "Event": "_events"}


def kube(server: str = "http://127.0.0.1:9") -> Kube:
    return Kube(Access(server, None, lambda: "own"))


def event(name: str = "e", *, message: str = "it happened", of: str = "train", **more: Any) -> Object:
    about = {"kind": "PyTorchJob", "namespace": "default", "name": of, "uid": f"uid-{of}"}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    said = {"type": "Normal", "reason": "Happened", "message": message, "lastTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, **said, **more}


def node(name: str = "node-0", **spec: Any) -> Object:
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"conditions": conditions, "allocatable": {"cpu": "8", "memory": "16Gi"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": status}


def owned(found: Object, kind: str = "pytorchjob-controller") -> Object:
    found["metadata"]["labels"]["training.kubeflow.org/operator-name"] = kind
    return found


class Scene:
    def __init__(self, *objects: Object) -> None:
        self.news = News()
        self.observer = Observer(kube(), kinds=list(KINDS))
        self.now = 1000.0
        self.book = Book(job_of_uid=self.observer.job_of_uid, clock=lambda: self.now, monotonic=lambda: self.now)
        self.views = Views(self.observer, self.book)
        self.streams = Streams(self.observer, self.book, self.views, self.news)
        self.observer.job_changed = self._changed
        self.observer.job_gone = self._changed
        self.observer.nodes_changed = lambda: self.news.tell(NODES)
        self._version = 0
        self.objects: dict[tuple[str, str], Object] = {}
        """The jobs by namespace and name, as the small API server has them."""
        self.log = "first line\nsecond line\n"
        self.lists: dict[str, Object] = {}
        """Lists of the small API server by their path."""
        self.observer.subscribe()
        self.put(*objects)

    def _changed(self, uid: str) -> None:
        self.book.see(uid)
        self.news.tell(uid)

    def put(self, *objects: Object) -> None:
        for found in objects:
            self._version += 1
            copy = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self._version)}}
            self._cache(found["kind"])._put(copy)
            if found["kind"] in KINDS:
                self.objects[found["metadata"]["namespace"], found["metadata"]["name"]] = copy

    def drop(self, found: Object) -> None:
        self._cache(found["kind"])._drop((found["metadata"].get("namespace", ""), found["metadata"]["name"]))

    def _cache(self, kind: str) -> Any:
        return self.observer._jobs[kind] if kind in KINDS else getattr(self.observer, PLURALS[kind])

    @asynccontextmanager
    async def served(
        self,
        folder: Path,
        *,
        sessions: Sessions | None = None,
        allows_changes: bool = False,
        command_options: str = "",
        api: str = "",
        reclaim: tuple[str, ...] = (),
        is_logged_in: bool = True,
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """Serve this scene, and yield a session with the server. Without `api`, a small API server answers for the jobs."""
        async with contextlib.AsyncExitStack() as opened_api:
            api = api or await opened_api.enter_async_context(small_api(self))
            async with self._served(folder, kube(api), sessions, allows_changes, command_options, reclaim, is_logged_in) as browser:
                yield browser

    @asynccontextmanager
    async def _served(
        self,
        folder: Path,
        own: Kube,
        sessions: Sessions | None,
        allows_changes: bool,
        command_options: str,
        reclaim: tuple[str, ...],
        is_logged_in: bool,
    ) -> AsyncIterator[aiohttp.ClientSession]:
        server = Server(
            observer=self.observer,
            views=self.views,
            streams=self.streams,
            sessions=sessions or LaptopSessions(folder, own),
            guard=Guard(),
            reclaims=Reclaims(reclaim),
            settings=ServingSettings(allows_changes=allows_changes, command_options=command_options),
            is_ready=lambda: True,
        )
        opened = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{opened.getsockname()[1]}"
        jar = aiohttp.CookieJar(unsafe=True)
        async with server.serving(opened, None), aiohttp.ClientSession(url, cookie_jar=jar) as browser:
            if is_logged_in:
                token = OneTimeToken(folder / "token").current()
                assert (await browser.get(f"/login?token={token}", allow_redirects=False)).status == 303
            yield browser


@asynccontextmanager
async def small_api(shown: Scene) -> AsyncIterator[str]:
    """Yield the address of an API server that has the scene's jobs, one log for all pods, and the lists that the scene has."""

    async def answer(request: web.Request) -> web.Response:
        words = request.path.strip("/").split("/")
        if words[-1] == "log":
            return web.Response(text=shown.log)
        found = shown.lists.get(request.path) or (shown.objects.get((words[-3], words[-1])) if len(words) > 2 else None)
        if found is None:
            gone = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "there is no such object"}
            return web.json_response(gone, status=404)
        return web.json_response(found)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


__all__ = ["Scene", "event", "job", "kube", "node", "owned", "pod", "running"]


def scene() -> Scene:
    return Scene(job(status=running(generation=4)), owned(pod(0)), owned(pod(1)), node(), event(message=HOSTILE))


async def read(browser: aiohttp.ClientSession, path: str, **headers: str):
    async with browser.get(path, headers=headers, allow_redirects=False) as response:
        return response.status, await response.read(), response.headers


async def send(browser: aiohttp.ClientSession, path: str, body: object, **headers: str):
    own = {"Origin": str(browser._base_url).rstrip("/"), **headers}
    async with browser.post(path, json=body, headers=own) as response:
        return response.status, await response.json()


async def events(response: aiohttp.ClientResponse):
    while True:
        text = (await response.content.readuntil(b"\n\n")).decode()
        if text.startswith("event: "):
            name, _, data = text.removeprefix("event: ").partition("\ndata: ")
            yield name, json.loads(data)


async def until(is_so) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
