"""Connections that are cut before the listener has done anything for them, and those that are left when their server ends."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from elastic import certificates
from elastic.runtime.listener import Bounds, Listener


@pytest.fixture
async def listening() -> AsyncIterator[tuple[Listener, socket.socket]]:
    listener = Listener(Bounds(most=1, strangers=1, of_one_address=1, oldest_goes_at_once=True))
    there = socket.create_server(("127.0.0.1", 0))
    runner = web.ServerRunner(web.Server(lambda request: asyncio.sleep(0)))  # type: ignore[arg-type]
    await runner.setup()
    assert runner.server is not None
    listener.open([there], runner.server, tls=None, backlog=8)  # type: ignore[arg-type]
    yield listener, there
    await listener.close()
    await runner.cleanup()
    there.close()


async def test_a_connection_that_is_cut_before_its_handshake_has_begun_is_closed(
    listening: tuple[Listener, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a flood the next connection was accepted, and the oldest cut, in the turn of the loop that had accepted the oldest.

    Its task was cancelled before its first step, and nothing closed the socket.
    """
    listener, there = listening
    begin = listener._begin

    def cut_at_once(work):  # type: ignore[no-untyped-def]
        task = begin(work)
        if work.__name__ == "_shake_hands":
            task.cancel()
        return task

    monkeypatch.setattr(listener, "_begin", cut_at_once)
    loop = asyncio.get_running_loop()
    with socket.socket() as peer:
        peer.setblocking(False)
        await loop.sock_connect(peer, there.getsockname())
        assert await asyncio.wait_for(loop.sock_recv(peer, 1), 10) == b""


def open_sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


async def answers(request: web.BaseRequest) -> web.Response:
    return web.Response(text="done")


def tls_of_both(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = certificates.make_ca("test")
    pair = certificates.issue(authority, "server", names=("127.0.0.1",))
    for name, content in (("crt", pair.certificate), ("key", pair.key), ("ca", authority.certificate)):
        (folder / name).write_bytes(content)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "crt", folder / "key")
    return server, ssl.create_default_context(cafile=folder / "ca")


def ask_and_hear_no_more(address: tuple[str, int], trust: ssl.SSLContext) -> ssl.SSLSocket:
    peer = trust.wrap_socket(socket.create_connection(address, timeout=20), server_hostname="127.0.0.1")
    peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while b"done" not in peer.recv(4096):
        pass
    return peer


async def test_a_peer_that_answers_no_good_bye_keeps_no_socket_of_a_server_that_has_ended(tmp_path: Path) -> None:
    """The socket stayed open for five seconds more, or until the process noticed that nobody held it."""
    tls, trust = tls_of_both(tmp_path)
    before = open_sockets()
    listener = Listener(Bounds(most=4, strangers=4, of_one_address=4))
    with socket.create_server(("127.0.0.1", 0)) as there:
        runner = web.ServerRunner(web.Server(answers))
        await runner.setup()
        assert runner.server is not None
        listener.open([there], runner.server, tls=tls, backlog=8)  # type: ignore[arg-type]
        peer = await asyncio.to_thread(ask_and_hear_no_more, there.getsockname(), trust)
        own = {f"socket:[{os.fstat(peer.fileno()).st_ino}]"}
        await listener.close()
        await listener.cleanup(runner)
    assert open_sockets() - before <= own
    peer.close()


async def test_a_connection_that_comes_in_the_moment_of_the_end_is_closed() -> None:
    """The task that accepts was cancelled in the turn of the loop in which it had been given the connection, and dropped it."""
    before = open_sockets()
    listener = Listener(Bounds(most=4, strangers=4, of_one_address=4))
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as peer:
        runner = web.ServerRunner(web.Server(answers))
        await runner.setup()
        assert runner.server is not None
        listener.open([there], runner.server, tls=None, backlog=8)  # type: ignore[arg-type]
        await asyncio.sleep(0)  # now it waits for a connection
        peer.connect(there.getsockname())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # now it has been given one, and has not run since
        await listener.close()
        await listener.cleanup(runner)
        kept = {f"socket:[{os.fstat(one.fileno()).st_ino}]" for one in (there, peer)}
        assert open_sockets() - before <= kept
