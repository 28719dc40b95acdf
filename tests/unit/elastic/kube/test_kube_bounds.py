"""The Kubernetes client against servers that never end: answers, lists and redirects are bounded, and each error is one clear line."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner
from served_api import served

from elastic.cli import main
from elastic.kube import access, answers, client, paging
from elastic.kube.access import AccessError, TokenCommand
from elastic.kube.answering import LOST_AFTER_S
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECRET = "/api/v1/namespaces/n/secrets/s"


def pods(*, more: str = "", size: int = 0) -> web.Response:
    items = [{"metadata": {"name": "p", "pad": "x" * size}}] if size else []
    return web.json_response(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": more}, "items": items}
    )


async def refused(kube: Kube, act: Awaitable[Any]) -> str:
    with pytest.raises(KubeError) as caught:
        await act
    return str(caught.value)


async def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client read all of it into memory."""
    monkeypatch.setattr(client, "LARGEST_ANSWER", 100_000)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b"x" * 10_000)
        raise AssertionError("the client has read 10 MB")

    async with served(answer) as kube:
        assert "its answer is longer than 100000 bytes" in await refused(kube, kube.request("GET", "/version"))


@pytest.mark.parametrize("status", [404, 200])
async def test_an_answer_that_drips_ends_in_time(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Each byte came within the time for a byte, and no limit was for the whole."""
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(client, "LAST_TRY_S", 0.0)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for _ in range(600):
            await response.write(b"x")
            await asyncio.sleep(0.05)
        return response

    async with served(answer) as kube:
        for act in (kube.request("GET", "/version"), kube.request("POST", "/api", body={})):
            async with asyncio.timeout(20):
                assert "no whole answer within 0.5 s" in await refused(kube, act)


async def test_a_refusal_of_a_watch_or_a_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LARGEST_REFUSAL", 1000)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, body=b"x" * 100_000)

    async with served(answer) as kube:
        for stream in (kube.watch(PODS), kube.logs("p", namespace="n")):
            assert "its answer is longer than 1000 bytes" in await refused(kube, anext(aiter(stream)))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (itertools.repeat("again"), "a page names itself as the next one"),
        (map(str, itertools.count()), "it has more than 20 pages"),
    ],
)
async def test_a_list_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, tokens: Any, words: str) -> None:
    monkeypatch.setattr(paging, "MOST_PAGES", 20)

    async def answer(request: web.Request) -> web.StreamResponse:
        return pods(more=next(tokens))

    async with served(answer) as kube:
        assert words in await refused(kube, kube.list(PODS))


async def test_a_list_is_bounded_in_bytes() -> None:
    count = itertools.count()

    async def answer(request: web.Request) -> web.StreamResponse:
        return pods(more=str(next(count)), size=10_000)

    async with served(answer) as kube:
        kube._most_listed = 50_000
        assert "the list does not end: it is longer than 50000 bytes" in await refused(kube, kube.list(PODS))
    assert next(count) < 10


async def test_a_page_of_large_objects_is_asked_for_again_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 objects of 1 MB each are a list that an API server may hold."""
    monkeypatch.setattr(client, "LARGEST_ANSWER", 100_000)
    limits: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        limits.append(int(request.query["limit"]))
        return pods(size=1000 * limits[-1])

    async with served(answer) as kube:
        assert len((await kube.list(PODS)).items) == 1
    assert limits == [500, 50]


async def test_no_redirect_is_followed() -> None:
    """Another server got the request and was believed: `elastic get` printed its answer."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=307 if request.method == "POST" else 302, headers={"Location": "/stolen"})

    async with served(answer) as kube:
        for act in (
            kube.request("GET", SECRET),
            kube.request("POST", SECRET, body={"token": "t"}),
            anext(aiter(kube.watch(PODS))),
            anext(aiter(kube.logs("p", namespace="n"))),
            kube.websocket(SECRET, params={}, protocol="v4").__aenter__(),
        ):
            words = await refused(kube, act)
            assert "sends its clients to /stolen, which is not followed; name the API server itself in the kubeconfig" in words
    assert "/stolen" not in asked


async def test_a_stream_that_may_be_silent_for_hours_ends_once_its_server_is_gone() -> None:
    """A followed log and a connection to a pod's port waited for ever after their server's node had vanished.

    The kernel asks a silent peer only if it is told to.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        if "upgrade" in request.headers:
            upgraded = web.WebSocketResponse(protocols=("v4",))
            await upgraded.prepare(request)
            await upgraded.receive()
            return upgraded
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a line")
        await asyncio.sleep(0.01)
        return response

    async with served(answer) as kube:
        async with aclosing(kube.logs("p", namespace="n", follow=True)) as log:
            assert await anext(log) == b"a line"
            (asked,) = [is_asked for port, is_asked in connections() if str(port) == kube.access.server.rpartition(":")[2]]
            assert asked
        async with kube.websocket("/port", params={}, protocol="v4") as upgraded:
            connection = upgraded.get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == LOST_AFTER_S * 1000


def connections() -> Iterator[tuple[int, bool]]:
    """Yield the peer's port of each TCP connection of this process, and whether the kernel asks a silent peer."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.type == socket.SOCK_STREAM and found.family == socket.AF_INET:
                    yield found.getpeername()[1], bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


async def test_a_total_time_limit_alone_ends_endless_informational_answers() -> None:
    """A session without `BoundedAnswer`, such as that of a library, depends on this."""
    ended = asyncio.Event()

    async def answers_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
                await writer.drain()
        except ConnectionError:
            ended.set()
        finally:
            writer.close()

    server = await asyncio.start_server(answers_of, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        port = server.sockets[0].getsockname()[1]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.5)) as session:
            with pytest.raises(TimeoutError):
                await session.get(f"http://127.0.0.1:{port}/")
        await ended.wait()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("while True: print('x' * 10000)", "it printed more than 1048576 bytes"),
        ("import sys\nwhile True: sys.stderr.write('x' * 10000)", "it printed more than 1048576 bytes"),
        ("import time; time.sleep(60)", "it did not end within 0.5 s"),
        ("import os, time; os.close(1); os.close(2); time.sleep(60)", "it did not end within 0.5 s"),
        ("import subprocess; subprocess.Popen(['sleep', '20'])", "it did not end within 0.5 s"),
    ],
)
def test_a_credential_program_is_bounded_in_time_and_output(monkeypatch: pytest.MonkeyPatch, program: str, words: str) -> None:
    """Its output was collected without a bound for up to a minute."""
    monkeypatch.setattr(access, "COMMAND_TIMEOUT_S", 0.5 if "0.5" in words else 30.0)
    asks = TokenCommand({"command": sys.executable, "args": ["-c", program]})
    with pytest.raises(AccessError, match=f"could not be run: {words}"):
        asks()


@pytest.mark.parametrize("kind", ["pages", "redirect", "body"])
async def test_elastic_get_against_a_hostile_server_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    monkeypatch.setattr(paging, "MOST_PAGES", 20)
    monkeypatch.setattr(client, "LARGEST_ANSWER", 100_000)
    count = itertools.count()

    async def answer(request: web.Request) -> web.StreamResponse:
        if kind == "redirect":
            return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})
        return web.Response(body=b"x" * 200_000) if kind == "body" else pods(more=str(next(count)))

    async with served(answer) as kube:
        user = {"name": "u", "user": {"token": "t"}}
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": kube.access.server}}],
            "users": [user],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        said = await asyncio.to_thread(CliRunner().invoke, main, ["get", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert said.exit_code == 1
    assert said.stderr.startswith("Error: ")
    assert "Traceback" not in said.output
    assert said.stderr.count("\n") == 1
