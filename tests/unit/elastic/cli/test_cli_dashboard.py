"""Check `elastic dashboard` with a cluster.

A one-time link lets one browser in. The browser reaches the dashboard's pod through the API server, and sees the objects that the caller's
token may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from click.testing import CliRunner
from served_api import served

from elastic.cli import failures, main
from elastic.cli.showing.cluster import Token, show
from elastic.cli.showing.front import COOKIE
from elastic.kube.access import Access
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
SPEC: dict[str, Any] = {"serviceAccountName": "elastic-dashboard", "containers": [{"name": "dashboard", "image": "elastic-training:1"}]}
POD: dict[str, Any] = {"metadata": {"name": "dashboard-x", "namespace": "elastic-system", "uid": "uid-x"}, "spec": SPEC, "status": READY}
DEPLOYMENT: dict[str, Any] = {"kind": "Deployment", "metadata": {"name": "elastic-dashboard"}, "spec": {"template": {"spec": SPEC}}}


class World:
    """Simulates an API server, and a dashboard that listens in one of the pods."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods, self.port = list(pods), 0
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.forwarded: list[str] = []
        self.reached: list[str] = []
        self.at_forward: Callable[[], None] = lambda: None
        self.issued = 0
        self.refusal = ""
        self.may_not_forward, self.is_installed = False, True

    async def api(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/portforward"):
            if "*/*" not in request.headers["Accept"]:
                return web.Response(status=406, text="406: Not Acceptable\n\nAvailable representations: ")
            if self.may_not_forward:
                return web.Response(status=403)
            self.forwarded.append(request.query["ports"])
            self.reached.append(request.path.split("/")[-2])
            self.at_forward()
            return await self._forward(request)
        if request.path.endswith("/serviceaccounts/viewer/token"):
            self.issued += 1
            return web.json_response({"status": {"token": f"issued-{self.issued}"}})
        if request.path.endswith("/deployments/elastic-dashboard"):
            missing = {"kind": "Status", "code": 404, "reason": "NotFound"}
            return web.json_response(DEPLOYMENT) if self.is_installed else web.json_response(missing, status=404)
        assert request.query["labelSelector"] == "app=elastic-dashboard"
        return web.json_response({"kind": "PodList", "metadata": {}, "items": self.pods})

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + struct.pack("<H", 8080))
        if self.refusal:
            await socket.send_bytes(b"\x01" + self.refusal.encode())
            return socket
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def down() -> None:
            while data := await reader.read(1000):
                await socket.send_bytes(b"\0" + data)
            await socket.close()

        task = asyncio.create_task(down())
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
        writer.close()
        task.cancel()
        return socket

    async def dashboard(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, str(request.rel_url), dict(request.headers)))
        if request.path == "/api/stream":
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Set-Cookie": "a=b"})
            await answer.prepare(request)
            await answer.write(b"data: one\n\n")
            await asyncio.sleep(60)
            return answer
        if request.path == "/broken":
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(b"half")
            assert request.transport is not None
            request.transport.close()
            return answer
        return web.Response(text="x" * 100_000 if request.path == "/big" else "page", headers={"Content-Security-Policy": "p"})


@asynccontextmanager
async def opened(world: World, **options: Any) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", world.dashboard)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    world.port = runner.addresses[0][1]
    links: asyncio.Queue[str] = asyncio.Queue()
    also = options.pop("also", lambda link: None)

    def say(link: str) -> None:
        links.put_nowait(link)
        also(link)

    async with served(world.api) as kube:
        given = {"account": None, "port": 0} | options
        showing = asyncio.create_task(show(kube, "elastic-system", say=say, **given))
        waiting = asyncio.create_task(links.get())
        await asyncio.wait([showing, waiting], return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            waiting.cancel()
            await runner.cleanup()
            showing.result()
        try:
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
                yield waiting.result(), browser
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            await runner.cleanup()


async def test_a_link_lets_one_browser_in_and_each_request_carries_the_callers_token() -> None:
    world = World({**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "now", "name": "old"}}, POD)
    async with opened(world) as (link, browser):
        assert link.startswith("http://127.0.0.1:")
        site = link.partition("/login")[0]
        async with browser.get(f"{site}/") as answer:
            assert (answer.status, await answer.text()) == (403, "open the link that `elastic dashboard` printed last\n")
        assert world.asked == []
        async with browser.get(link) as answer:
            assert (answer.status, await answer.text(), answer.headers["Content-Security-Policy"]) == (200, "page", "p")
        async with browser.get(f"{site}/big?a=%20b") as answer:
            assert len(await answer.text()) == 100_000
        method, url, headers = world.asked[-1]
        assert (method, url, headers["Authorization"], headers["Host"]) == ("GET", "/big?a=%20b", "Bearer t", site.removeprefix("http://"))
        assert COOKIE not in headers.get("Cookie", "")
        async with aiohttp.ClientSession() as another, another.get(link) as answer:
            assert (answer.status, "used already" in await answer.text()) == (403, True)
        async with browser.get(f"{site}/api/stream") as stream:
            assert await stream.content.readline() == b"data: one\n"
            assert "Set-Cookie" not in stream.headers
        assert set(world.forwarded) == {"8080"}


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Host": "evil.example"}),
        ("GET", {"Origin": "http://evil.example"}),
        ("GET", {"Sec-Fetch-Site": "cross-site"}),
        ("POST", {}),
        ("DELETE", {"Origin": "null"}),
    ],
)
async def test_a_request_from_a_page_of_another_site_is_refused(method: str, headers: dict[str, str]) -> None:
    """`elastic dashboard` must check the Origin itself.

    It adds a token to each request, and the dashboard accepts requests with a token from any page.
    """
    world = World(POD)
    async with opened(world) as (link, browser):
        await browser.get(link)
        before = len(world.asked)
        async with browser.request(method, f"{link.partition('/login')[0]}/api/jobs", headers=headers) as answer:
            assert answer.status == 403
        assert len(world.asked) == before


async def test_a_program_with_its_own_token_needs_no_link() -> None:
    """`elastic top --dashboard http://localhost:PORT` is an example of such a program."""
    world = World(POD)
    async with opened(world) as (link, browser):
        site, own = link.partition("/login")[0], {"Authorization": "Bearer mine"}
        for method in ("GET", "POST"):
            async with browser.request(method, f"{site}/api/jobs", headers=own) as answer:
                assert answer.status == 200
            assert world.asked[-1][2]["Authorization"] == "Bearer mine"
        async with browser.get(f"{site}/api/jobs", headers={**own, "Origin": "http://evil.example"}) as answer:
            assert answer.status == 403


async def test_a_change_from_our_own_page_is_forwarded_with_its_body() -> None:
    world = World(POD)
    async with opened(world) as (link, browser):
        await browser.get(link)
        site = link.partition("/login")[0]
        async with browser.post(f"{site}/api/jobs", json={"workers": 3}, headers={"Origin": site}) as answer:
            assert answer.status == 200
        method, _, headers = world.asked[-1]
        assert (method, headers["Content-Type"], headers["Origin"], headers["Content-Length"]) == ("POST", "application/json", site, "14")


async def test_the_token_of_an_account_is_renewed_after_half_its_lifetime() -> None:
    world, now = World(POD), [0.0]
    async with served(world.api) as kube:
        token = Token(kube, ("research", "viewer"), clock=lambda: now[0])
        assert [await token(), await token()] == ["issued-1", "issued-1"]
        now[0] = 1800
        assert await token() == "issued-2"
    async with opened(world, account=("research", "viewer")) as (link, browser):
        await browser.get(link)
        assert world.asked[-1][2]["Authorization"] == "Bearer issued-3"


async def test_a_connection_that_the_pod_refuses_is_printed_and_answered_with_502(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(POD)
    async with opened(world) as (link, browser):
        world.refusal = "failed to connect to port 8080\x1b[2J"
        async with browser.get(link) as answer:
            assert (answer.status, "did not answer" in await answer.text()) == (502, True)
    assert "failed to connect to port 8080\\x1b[2J" in capsys.readouterr().err, "the terminal must get no control characters from the pod"


async def test_if_the_dashboard_aborts_an_answer_the_browser_gets_an_incomplete_answer_and_no_second_one() -> None:
    async with opened(World(POD)) as (link, _):
        host = link.removeprefix("http://").partition("/")[0]
        reader, writer = await asyncio.open_connection(*host.split(":"))
        writer.write(f"GET /broken HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer mine\r\n\r\n".encode())
        said = b""
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(reader.read(1000), 10):
                said += data
        writer.close()
        assert (said.count(b"HTTP/1.1"), b"half" in said, said.endswith(b"0\r\n\r\n")) == (1, True, False)


async def test_one_browser_can_use_two_dashboards() -> None:
    """A browser shares cookies between all ports of a host, so each dashboard needs a cookie name of its own."""
    async with opened(World(POD)) as (first, browser), opened(World(POD)) as (second, _):
        for link in (first, second):
            await browser.get(link)
        for link in (first, second):
            async with browser.get(f"{link.partition('/login')[0]}/") as answer:
                assert answer.status == 200


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], "does not run; `elastic install --component dashboard` adds it"),
        ([{**POD, "status": {}}], "is not ready yet"),
        ([{**POD, "spec": {**SPEC, "hostNetwork": True}}], "pod dashboard-x .* spec.hostNetwork is not the Deployment's.*no token"),
    ],
)
async def test_without_a_usable_dashboard_the_error_says_why(pods: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(KubeError, match=said) as raised:
        async with opened(World(*pods)):
            pass
    assert "cannot be reached" not in (failures.said(raised.value) or "")


async def test_without_the_deployment_no_pod_is_used() -> None:
    world = World(POD)
    world.is_installed = False
    with pytest.raises(KubeError, match="does not run"):
        async with opened(world):
            pass
    assert (world.forwarded, world.asked) == ([], [])


async def test_of_two_labelled_pods_the_one_of_the_deployment_is_used() -> None:
    foreign = {"metadata": {**POD["metadata"], "name": "a", "uid": "uid-a"}, "spec": {**SPEC, "hostAliases": [{}]}, "status": READY}
    world = World(foreign, POD)
    async with opened(world) as (link, browser):
        await browser.get(link)
    assert set(world.reached) == {"dashboard-x"}


async def test_a_pod_that_is_replaced_during_the_connection_gets_no_request() -> None:
    world = World(POD)
    async with opened(world) as (link, browser):
        uids = itertools.count()
        world.at_forward = lambda: world.pods.__setitem__(0, {**POD, "metadata": {**POD["metadata"], "uid": f"uid-{next(uids)}"}})
        async with browser.get(link) as answer:
            assert answer.status == 502
        assert world.asked == []


async def test_a_user_without_the_right_to_forward_ports_gets_an_error_instead_of_a_link() -> None:
    world = World(POD)
    world.may_not_forward = True
    with pytest.raises(KubeError, match="rights to get and to create pods/portforward in namespace elastic-system"):
        async with opened(world):
            pass


async def test_logging_out_ends_the_browsers_session_and_prints_the_next_link() -> None:
    world, said = World(POD), list[str]()
    async with opened(world, also=said.append) as (link, browser):
        await browser.get(link)
        site, before = link.partition("/login")[0], len(world.asked)
        async with browser.post(f"{site}/api/session/end", json={}, headers={"Origin": "http://evil.example"}) as answer:
            assert answer.status == 403
        async with browser.post(f"{site}/api/session/end", json={}, headers={"Origin": site}) as answer:
            assert answer.status == 200
        async with browser.get(f"{site}/api/session") as answer:
            assert (answer.status, "open the link" in (await answer.json())["error"]) == (403, True)
        assert len(world.asked) == before
        (_, following) = said
        assert following != link
        async with browser.get(following) as answer:
            assert answer.status == 200


async def test_a_kubeconfig_without_a_token_needs_the_option_account() -> None:
    async with Kube(Access(server="http://127.0.0.1:9", tls=None, token=lambda: None)) as kube:
        with pytest.raises(KubeError, match="--account NAMESPACE/NAME"):
            await show(kube, "elastic-system", account=None, port=0, say=print)


def test_the_option_account_needs_a_namespace(tmp_path: Any) -> None:
    done = CliRunner().invoke(main, ["dashboard", "--account", "viewer"], env={"KUBECONFIG": ""})
    assert (done.exit_code, "write NAMESPACE/NAME" in done.output) == (2, True)
