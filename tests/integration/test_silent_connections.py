"""Check which clients may keep a connection to our servers, and for how long. The servers go on under a crowd of silent clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from aiohttp import web
from api_process import CONFIG_MAPS, config_map, running
from prometheus_client import CollectorRegistry
from rendezvous_members import expecting, members
from torch_agents import serving, wait_until

from elastic import certificates
from elastic.local.agent.endpoint import Endpoint
from elastic.local.agent.fleet import Fleet
from elastic.local.agent.usage import Usage
from elastic.local.ports import free_port
from elastic.local.sandbox.channel import Channel
from elastic.runtime import listener
from elastic.runtime import web as health
from elastic.runtime.listener import Bounds, Listener

pytestmark = pytest.mark.integration

WIDE = Bounds(most=50, strangers=20, of_one_address=50, first_request_s=30, pause_s=30, body_s=30)
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"
SOON_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """An application behind a listener. It answers /long once the test lets it."""

    def __init__(self, folder: Path) -> None:
        authority = certificates.make_ca("test")
        pair = certificates.issue(authority, "server", names=("127.0.0.1",))
        for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.certificate)):
            (folder / name).write_bytes(content)
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self._trust = ssl.create_default_context(cafile=folder / "ca.crt")
        self.let = asyncio.Event()
        self.address = ("127.0.0.1", 0)
        self._stack = contextlib.AsyncExitStack()

    async def serve(self, bounds: Bounds) -> None:
        made = Listener(bounds)
        application = web.Application(middlewares=[made.middleware])
        application.router.add_route("*", "/{tail:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        opened = socket.create_server(("127.0.0.1", 0))
        self._stack.callback(opened.close)
        self.address = opened.getsockname()
        made.open([opened], runner.server, tls=self._tls, backlog=100)
        self._stack.push_async_callback(made.close)

    async def close(self) -> None:
        self.let.set()
        await self._stack.aclose()

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        if request.path == "/long":
            await self.let.wait()
        if request.path == "/big":
            return web.Response(body=bytes(20 << 20))
        return web.Response(text="done")

    async def connect(self, source: str = "127.0.0.1") -> Streams:
        made = await asyncio.open_connection(*self.address, ssl=self._trust, local_addr=(source, 0))
        self._stack.callback(made[1].close)
        return made

    async def silent(self, source: str = "127.0.0.1") -> Streams:
        """Connect without beginning a handshake."""
        made = await asyncio.open_connection(*self.address, local_addr=(source, 0))
        self._stack.callback(made[1].close)
        return made


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    yield made
    await made.close()


async def asked(streams: Streams, request: bytes = ASK) -> bytes:
    reader, writer = streams
    writer.write(request)
    return await asyncio.wait_for(reader.readuntil(b"done"), SOON_S)


async def ended(streams: Streams) -> bool:
    try:
        return await asyncio.wait_for(streams[0].read(1), SOON_S) == b""
    except ConnectionError:
        return True


async def test_a_peer_without_a_handshake_or_a_whole_request_is_disconnected(server: Server) -> None:
    await server.serve(replace(WIDE, first_request_s=0.3))
    half = await server.connect()
    half[1].write(ASK[:-2])
    for streams in (await server.silent(), await server.connect(), half):
        assert await ended(streams)


async def test_a_peer_whose_request_does_not_end_is_disconnected(server: Server) -> None:
    await server.serve(replace(WIDE, body_s=0.3))
    streams = await server.connect()
    streams[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
    assert await ended(streams)


async def test_a_pause_between_two_requests_has_its_time_and_a_long_answer_takes_what_it_takes(server: Server) -> None:
    await server.serve(replace(WIDE, first_request_s=2.0, pause_s=4.0, body_s=2.0))
    long, streams = await server.connect(), await server.connect()
    long[1].write(LONG)
    for _ in range(3):
        await asked(streams)
        await asyncio.sleep(0.8)
    assert await ended(streams)
    server.let.set()
    assert b"200 OK" in await asyncio.wait_for(long[0].readuntil(b"done"), SOON_S)


async def test_a_peer_that_does_not_read_its_answer_is_disconnected_and_a_slow_one_gets_it_whole(server: Server) -> None:
    await server.serve(replace(WIDE, pause_s=2.0))
    deaf, slow = await server.connect(), await server.connect()
    for streams in (deaf, slow):
        streams[1].write(ASK.replace(b"/ ", b"/big "))
    async with asyncio.timeout(60):
        for _ in range(20):
            await slow[0].readexactly(1 << 20)
            await asyncio.sleep(0.25)
    rest = 0
    with contextlib.suppress(ConnectionError):
        while part := await asyncio.wait_for(deaf[0].read(1 << 20), SOON_S):
            rest += len(part)
    assert rest < 20 << 20


async def test_silent_peers_give_their_places_to_newcomers_and_speaking_peers_keep_theirs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOMENT_S", 0.2)
    await server.serve(replace(WIDE, most=12, strangers=6))
    speaking = [await server.connect() for _ in range(4)]
    for streams in speaking:
        streams[1].write(LONG)
    silent = [await server.silent() for _ in range(30)]
    newcomer = await asyncio.wait_for(server.connect(), SOON_S)
    assert b"200 OK" in await asked(newcomer)
    assert await ended(silent[0])
    server.let.set()
    for streams in speaking:
        assert b"200 OK" in await asyncio.wait_for(streams[0].readuntil(b"done"), SOON_S)


async def test_a_pausing_peer_gives_way_only_if_all_places_are_taken(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOMENT_S", 0.2)
    await server.serve(replace(WIDE, most=4, strangers=2))
    pausing = []
    for _ in range(4):
        pausing.append(await server.connect())
        await asked(pausing[-1])
    await asked(await server.connect())
    assert await ended(pausing[0])
    assert b"200 OK" in await asked(pausing[3])


async def test_the_address_with_most_silent_peers_loses_them_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOMENT_S", 0.2)
    await server.serve(replace(WIDE, strangers=6))
    early = await server.connect("127.0.0.2")
    crowd = [await server.silent("127.0.0.3") for _ in range(20)]
    await asked(await asyncio.wait_for(server.connect("127.0.0.4"), SOON_S))
    assert await ended(crowd[0])
    assert b"200 OK" in await asked(early)


async def test_one_address_does_not_get_all_places(server: Server) -> None:
    await server.serve(replace(WIDE, most=8, of_one_address=4))
    speaking = [await server.connect("127.0.0.2") for _ in range(4)]
    for streams in speaking:
        streams[1].write(LONG)
    assert await ended(await server.silent("127.0.0.2"))
    assert b"200 OK" in await asked(await server.connect("127.0.0.3"))


@pytest.mark.parametrize("has_spoken", [True, False])
async def test_an_idle_peer_gives_its_place_to_the_next_caller_from_its_address(
    server: Server, monkeypatch: pytest.MonkeyPatch, has_spoken: bool
) -> None:
    """The next caller comes in although its address has taken all its places.

    All callers of a dashboard come from the loopback or from one proxy. 384 connections without a session locked everybody out, as long as
    each of them asked for a page now and then.
    """
    monkeypatch.setattr(listener, "MOMENT_S", 0.2)
    await server.serve(replace(WIDE, most=8, of_one_address=4))
    busy = await server.connect("127.0.0.2")
    busy[1].write(LONG)
    idle = [await server.connect("127.0.0.2") for _ in range(3)]
    if has_spoken:
        for streams in idle:
            await asked(streams)
    await asyncio.sleep(0.3)
    assert b"200 OK" in await asked(await server.connect("127.0.0.2"))
    assert await ended(idle[0])
    assert b"200 OK" in await asked(idle[2])
    server.let.set()
    assert b"200 OK" in await asyncio.wait_for(busy[0].readuntil(b"done"), SOON_S)


async def test_a_peer_that_has_gone_leaves_its_place(server: Server) -> None:
    await server.serve(replace(WIDE, most=2, strangers=2))
    for _ in range(10):
        streams = await asyncio.wait_for(server.connect(), SOON_S)
        await asked(streams)
        streams[1].transport.abort()


AT_ONCE = replace(WIDE, most=6, of_one_address=4, oldest_goes_at_once=True)


async def test_if_the_oldest_goes_at_once_nobody_waits_for_a_silent_peer(server: Server) -> None:
    await server.serve(AT_ONCE)
    speaking = await server.connect("127.0.0.2")
    speaking[1].write(LONG)
    silent = [await server.silent("127.0.0.3") for _ in range(10)]
    assert b"200 OK" in await asked(await server.connect("127.0.0.4"))
    assert await ended(silent[0])
    server.let.set()
    assert b"200 OK" in await asyncio.wait_for(speaking[0].readuntil(b"done"), SOON_S)


async def test_if_the_oldest_goes_at_once_a_peer_that_is_being_answered_goes_last(server: Server) -> None:
    await server.serve(AT_ONCE)
    speaking = [await server.connect("127.0.0.2") for _ in range(4)]
    for streams in speaking:
        streams[1].write(LONG)
    await asked(await server.connect("127.0.0.3"))  # this answer shows that the server has read the requests
    assert b"200 OK" in await asked(await server.connect("127.0.0.2"))
    ends = [asyncio.create_task(ended(streams)) for streams in speaking]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    server.let.set()
    assert sorted([await end for end in ends]) == [False, False, False, True]


async def silent_at(port: int, count: int, stack: contextlib.AsyncExitStack) -> Streams:
    """Open this number of connections, and return the first one."""
    made = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(count)]
    for streams in made:
        stack.callback(streams[1].close)
    return made[0]


async def test_probes_are_answered_while_a_crowd_says_nothing() -> None:
    """Each silent connection stayed for ever, and took one of the controller's file descriptors."""
    port = free_port()
    async with (
        contextlib.AsyncExitStack() as stack,
        health.serving(health_port=port, metrics_port=0, is_ready=lambda: True, registry=CollectorRegistry()),
    ):
        first = await silent_at(port, 200, stack)
        probe = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(probe[1].close)
        probe[1].write(ASK.replace(b"/ ", b"/healthz "))
        assert await asyncio.wait_for(probe[0].readuntil(b"ok\n"), SOON_S)
        assert await ended(first)


async def test_the_node_agent_answers_the_api_server_while_a_crowd_begins_no_handshake(tmp_path: Path) -> None:
    authority = certificates.make_ca("cluster")
    pair = certificates.issue(authority, "kube-apiserver-kubelet-client", organizations=("system:masters",))
    (tmp_path / "client").write_bytes(pair.certificate + pair.key)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    trust.load_cert_chain(tmp_path / "client")
    endpoint = Endpoint(cast(Fleet, None), cast("Channel", None), cast(Usage, None))
    port = await endpoint.start("127.0.0.1", authority.certificate.decode())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(endpoint.stop)
        first = await silent_at(port, 200, stack)
        asking = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, ssl=trust), SOON_S)
        stack.callback(asking[1].close)
        asking[1].write(ASK.replace(b"/ ", b"/healthz "))
        assert b"200 OK" in await asyncio.wait_for(asking[0].readline(), SOON_S)
        assert await ended(first)


SILENT, OPEN_FILES = 1400, 1024


@pytest.fixture
def few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the number of open files of processes that a test starts with this Python."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nulimit -n {OPEN_FILES}\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@contextlib.contextmanager
def crowd(port: int) -> Iterator[None]:
    """Connect many sockets, and say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT):
            silent = stack.enter_context(socket.socket())
            silent.setblocking(False)
            silent.connect_ex(("127.0.0.1", port))
        yield


@pytest.mark.usefixtures("few_files")
async def test_the_api_server_serves_on_while_a_crowd_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder) as server:
        async with server.client() as before:
            await before.make(CONFIG_MAPS, config_map("one"))
            with crowd(server.port):
                for i in range(5):
                    assert (await before.ask("PUT", f"{CONFIG_MAPS}/one", config_map("one", n=str(i))))[0] == 200
                    async with server.client() as newcomer:
                        assert (await newcomer.ask("GET", f"{CONFIG_MAPS}/one"))[1]["data"] == {"n": str(i)}


@pytest.mark.usefixtures("few_files")
def test_the_rendezvous_server_serves_on_while_a_crowd_says_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.expect("job", expecting(2))
        with members(server, "job", 2), crowd(server.port):
            wait_until(lambda: (world := server.world("job")) is not None and len(world.members) == 2, what="both are in the world")
            for _ in range(5):
                assert server.call("GET", "/healthz")[0] == 200
