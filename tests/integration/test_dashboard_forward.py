"""`elastic dashboard` reaches the pod's loopback through any API server, and only a pod that runs what the Deployment describes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from grounds import Ground
from laptop import NAMESPACE, Object, container, get, pod, until

from elastic.api.rights import DASHBOARD
from elastic.cli.showing.cluster import show
from elastic.kube.client import Kube
from elastic.kube.resources import DEPLOYMENTS, PODS, Resource
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(300), pytest.mark.sandboxes("netns")]
SERVER = """
import http.server
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = (self.headers["Authorization"] + self.path).encode() * (100_000 if self.path == "/big" else 1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Answers).serve_forever()
"""


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("forward"), control_plane=False) as running:
        yield running


async def test_the_pod_is_reached_with_the_callers_token(kube: Kube, unique: str) -> None:
    name = f"dashboard-{unique}"
    probe = {"exec": {"command": ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8080)).close()"]}}
    made = pod(
        name,
        container("python", "-c", SERVER, readinessProbe={**probe, "periodSeconds": 1}),
        labels={"app": DASHBOARD},
        restartPolicy="Always",
    )
    await kube.create(PODS, made, namespace=NAMESPACE)

    async def ready() -> bool:
        found: Object | None = await get(kube, name)
        conditions = (found or {}).get("status", {}).get("conditions") or ()
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    await until(ready, "the server listens")
    running = await kube.get(PODS, name, namespace=NAMESPACE)
    links: asyncio.Queue[str] = asyncio.Queue()
    client: Any = _WithDeployment(kube, deployment(running))
    showing = asyncio.create_task(show(client, NAMESPACE, account=(NAMESPACE, "default"), port=0, say=links.put_nowait))
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            link = await links.get()
            first = await (await browser.get(link)).text()
            assert first.startswith("Bearer ")
            assert first.endswith("/")
            site = link.partition("/login")[0]
            big = await asyncio.gather(*(_text(browser, f"{site}/big") for _ in range(5)))
            assert {len(text) for text in big} == {(len(first) + len("big")) * 100_000}
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


class _WithDeployment:
    """A client that finds a Deployment: the laptop's API server stores none."""

    def __init__(self, kube: Kube, found: Object) -> None:
        self._kube, self._found = kube, found

    async def find(self, resource: Resource, name: str, *, namespace: str) -> Object | None:
        return self._found if resource == DEPLOYMENTS else await self._kube.find(resource, name, namespace=namespace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)


def deployment(running: Object) -> Object:
    """Return a Deployment that describes the pod."""
    labels = {"app": DASHBOARD}
    template = {"metadata": {"labels": labels}, "spec": {**running["spec"], "restartPolicy": "Always"}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DASHBOARD}, "spec": spec}


async def _text(browser: aiohttp.ClientSession, url: str) -> str:
    async with browser.get(url) as answer:
        return await answer.text()
