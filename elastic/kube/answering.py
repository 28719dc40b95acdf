"""Watch over the connections on which the answers to a client come in.

Many answers are streams that may be silent for hours, such as a followed log. So TCP asks whether the server is still there. aiohttp closes
a stream gently, which with TLS waits for the server's goodbye. If the loop ends before, as with a silent server, the connection stays open;
therefore the client aborts what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from types import SimpleNamespace

import aiohttp

ASKED_AFTER_S, ASKED_EVERY_S, ASKED_TIMES = 30, 10, 5
"""Seconds of silence until TCP asks the peer, seconds between two questions, and questions until the connection breaks."""
LOST_AFTER_S = ASKED_AFTER_S + ASKED_EVERY_S * ASKED_TIMES


class Answering:
    """The connections of one session."""

    def __init__(self) -> None:
        self._transports = weakref.WeakSet[asyncio.Transport]()

    def trace(self) -> aiohttp.TraceConfig:
        """Return the configuration by which the session tells its connections."""
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._began)
        return trace

    async def _began(self, _: aiohttp.ClientSession, __: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        connection = params.response.connection
        if connection is not None and connection.transport is not None:
            self._transports.add(connection.transport)
            _keep_alive(connection.transport)

    def abort(self) -> None:
        """Break the connections off at the end of the session; the loop needs one more turn."""
        for transport in self._transports:
            transport.abort()


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel break the connection if nothing comes from the peer for LOST_AFTER_S, not even an acknowledgement."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    options = {
        "TCP_KEEPIDLE": ASKED_AFTER_S,
        "TCP_KEEPINTVL": ASKED_EVERY_S,
        "TCP_KEEPCNT": ASKED_TIMES,
        "TCP_USER_TIMEOUT": LOST_AFTER_S * 1000,  # for bytes of ours that are never acknowledged; no system but Linux has it
    }
    with contextlib.suppress(OSError):  # the connection has ended meanwhile
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
