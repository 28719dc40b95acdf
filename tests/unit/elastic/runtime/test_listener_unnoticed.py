"""A connection whose end the listener was not told: the loop closed its socket under a transport that says nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from elastic.runtime import listener
from elastic.runtime.connection import Connection
from elastic.runtime.listener import Bounds, Listener


class Unknowing(asyncio.Transport):
    aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def pausing(made: Listener) -> tuple[Connection, socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "peer", asyncio.Protocol(), gone=made._gone, now=0.0)
    connection.connection_made(Unknowing())
    made._add(connection)
    made._pauses(connection)
    return connection, ours, theirs


async def test_a_socket_that_is_closed_does_not_end_the_limits_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the limits of all connections when one socket closes unnoticed.

    It happened to an API server whose clients left in the middle of streams. 75 s later, a look at the closed socket ended the task that
    closes silent connections, for good.
    """
    monkeypatch.setattr(listener, "LOOK_EVERY_S", 0.01)
    made = Listener(Bounds(most=4, strangers=4, of_one_address=4, pause_s=0.05))
    _, closed, peer = pausing(made)
    silent, still_open, other = pausing(made)
    closed.close()
    looking = asyncio.create_task(made._look())
    async with asyncio.timeout(10):
        while made._by_handler and not looking.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not looking.done()
    assert not made._by_handler
    assert silent.is_over(), "it was silent for too long"
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    for one in (peer, still_open, other):
        one.close()


async def test_a_request_that_ends_on_a_closed_socket_ends_its_connection() -> None:
    made = Listener(Bounds(most=4, strangers=4, of_one_address=4))
    connection, closed, peer = pausing(made)
    closed.close()
    made._pauses(connection)
    assert not made._by_handler
    peer.close()
