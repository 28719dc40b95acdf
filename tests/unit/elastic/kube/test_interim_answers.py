"""Servers that others choose, and that send informational answers without end: each client of them says so and goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from autoscale_heard import Logs as NoLogs
from autoscale_heard import heard, job
from served_api import served

from elastic.api.scaling import ProgressSource, PrometheusProgress
from elastic.kube.interim import AT_ONCE, MOST_INTERIM, BoundedAnswer, Counted, Interim
from elastic.local.apiserver import proxying
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.hooktargets import Targets
from elastic.local.apiserver.proxying import Proxy
from elastic.local.dialled import DialledConnector
from elastic_training.controller.watching.kopf_answers import ShallowAnswer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
WORDS = f"it sent more than {MOST_INTERIM} informational answers and no final one"


@asynccontextmanager
async def sending(head: bytes, *, forever: bool = False, closes: bool = False) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Send these bytes; give the port, and whether a client has closed its connection."""
    gone = asyncio.Event()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while forever:
                writer.write(head)
                await writer.drain()
            if not closes:
                await reader.read()
        except ConnectionError:
            pass
        finally:
            gone.set()
            writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        yield server.sockets[0].getsockname()[1], gone


def to(port: int) -> Callable[..., Awaitable[socket.socket]]:
    async def dial(*_: object) -> socket.socket:
        return await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 5)

    return dial


@pytest.mark.parametrize("answer", [BoundedAnswer, ShallowAnswer])
@pytest.mark.parametrize("is_dialled", [True, False])
async def test_endless_informational_answers_end_the_request_and_the_connection(
    is_dialled: bool, answer: type[aiohttp.ClientResponse]
) -> None:
    """The process read them, and did nothing else, for as long as they came: no time limit came to pass."""
    async with sending(CONTINUE * 1000, forever=True) as (port, gone):
        connector = DialledConnector(to(port)) if is_dialled else aiohttp.TCPConnector()
        async with aiohttp.ClientSession(connector=connector, response_class=answer) as session:
            with pytest.raises(Interim, match=WORDS):
                await session.get(f"http://127.0.0.1:{port}/")
            await gone.wait()


async def test_informational_answers_that_come_one_by_one_end_the_request_too() -> None:
    async with sending(CONTINUE, forever=True) as (port, gone), aiohttp.ClientSession(response_class=BoundedAnswer) as session:
        with pytest.raises(Interim, match=WORDS):
            await session.get(f"http://127.0.0.1:{port}/")
        await gone.wait()


async def test_a_few_informational_answers_before_the_answer_are_skipped_at_every_request() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(CONTINUE * MOST_INTERIM)
        return web.Response(text="well")

    async with (
        served(answer) as behind,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), response_class=BoundedAnswer) as session,
    ):
        for _ in range(3):
            async with session.get(behind.access.server) as found:
                assert (found.status, await found.text()) == (200, "well")


class Transport(asyncio.Transport):
    aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("message", [CONTINUE, FINAL], ids=["informational", "final"])
async def test_only_the_first_of_thousands_of_answers_at_once_are_read(message: bytes) -> None:
    """Each read of a socket brought ten thousand, in one piece that nothing else could get in between."""
    handler, transport = ResponseHandler(asyncio.get_running_loop()), Transport()
    handler.connection_made(transport)
    handler.set_response_params()
    Counted(handler, handler, transport).data_received(message * 10_000)
    assert transport.aborted
    assert MOST_INTERIM < len(handler) <= AT_ONCE // len(message)
    assert isinstance(handler.exception(), Interim)


async def test_a_long_answer_comes_whole_with_what_came_before_it() -> None:
    body = bytes(range(256)) * 4096
    head = CONTINUE * 3 + f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with (
        sending(head + body) as (port, _),
        aiohttp.ClientSession(connector=DialledConnector(to(port)), response_class=BoundedAnswer) as session,
        session.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        assert await answer.read() == body


async def test_a_webhook_at_a_url_that_sends_them_has_not_answered() -> None:
    targets = Targets(SimpleNamespace())  # type: ignore[arg-type]
    async with sending(CONTINUE * 1000, forever=True) as (port, _):
        with pytest.raises(aiohttp.ClientError, match=WORDS):
            await targets.ask({"url": f"http://127.0.0.1:{port}/"}, {"request": {"uid": "u"}}, seconds=20)
    await targets.close()


async def test_a_page_of_progress_that_sends_them_could_not_be_read() -> None:
    async with sending(CONTINUE * 1000, forever=True) as (port, _):
        source = ProgressSource(prometheus=PrometheusProgress(port=port, path="/metrics", step="step"))
        _, trouble = await heard(NoLogs(), job(source), WORDS, address="127.0.0.1")
        assert WORDS in trouble


@asynccontextmanager
async def proxying_to(port: int) -> AsyncIterator[aiohttp.ClientSession]:
    """Pass on what this session asks as pods/proxy does."""
    pod = {"spec": {"containers": []}, "status": {"podIP": "127.0.0.1"}}
    store: Any = SimpleNamespace(get=lambda *_: SimpleNamespace(load=lambda: pod))
    kubelets: Any = SimpleNamespace(address=lambda _: ("127.0.0.1", 1))
    routes: Any = SimpleNamespace(reach=to(port))
    proxy = Proxy(store, routes, kubelets)
    kind: Any = SimpleNamespace(plural="pods", singular="pod")

    async def ours(request: web.Request) -> web.StreamResponse:
        call: Any = SimpleNamespace(kind=kind, namespace="n", name="p:80", body=b"")
        try:
            return await proxy.serve(request, call)
        except StatusError as error:
            return web.Response(status=error.code, text=error.message)

    async with served(ours) as front, aiohttp.ClientSession(front.access.server) as client:
        yield client


PATH = "/api/v1/namespaces/n/pods/p:80/proxy/"


async def test_a_pod_that_sends_them_through_the_proxy_is_an_error_with_words() -> None:
    async with sending(CONTINUE * 1000, forever=True) as (port, gone), proxying_to(port) as client:
        async with client.get(PATH) as answer:
            assert (answer.status, await answer.text()) == (503, f"error trying to reach service: {WORDS}")
        await gone.wait()


async def test_a_pod_that_does_not_begin_to_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "REQUEST_S", 0.2)
    async with sending(CONTINUE) as (port, _), proxying_to(port) as client, client.get(PATH) as answer:
        assert (answer.status, await answer.text()) == (503, "error trying to reach service: timed out")
