"""A connection that is cut before the listener has done anything for it."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

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
    """Under a flood the next connection was accepted, and the oldest cut, in the turn of the loop that had accepted the oldest: its task
    was cancelled before its first step, and nothing closed the socket."""
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
