"""One accepted connection: stands between a transport and its handler, notices its end, and whether the peer takes its answer."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import cast

from aiohttp import web

_BYTES_ACKED = slice(120, 128)
"""where Linux's struct tcp_info has them"""


class Connection(asyncio.Protocol):
    """Stands between a transport and its handler, to notice the connection's end."""

    def __init__(
        self, accepted: socket.socket, address: str, handler: asyncio.Protocol, *, gone: Callable[[Connection], None], now: float
    ) -> None:
        self.address, self.handler, self.since = address, handler, now
        self.request: web.Request | None = None
        self.handshake: asyncio.Task[None] | None = None
        self.has_begun = self.is_lost = False
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._socket = accepted
        self._taken = b""

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def handshake_ended(self, handshake: asyncio.Task[None]) -> None:
        """Close the socket if nothing else does: a task that is cancelled before its first step runs none of its code."""
        if not self.has_begun:
            self._socket.close()

    def is_over(self) -> bool:
        """Return whether the connection has ended. Not every transport tells that its socket is closed."""
        return self._transport is None or self._transport.is_closing() or self._socket.fileno() < 0

    def takes_more(self) -> bool:
        """Return whether an answer still waits for the peer, and the peer has read some of it since the last call."""
        try:
            waiting = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
            taken = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)[_BYTES_ACKED]
        except OSError:
            return False
        before, self._taken = self._taken, taken
        return any(waiting) and taken != before

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self.handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._gone(self)
        self.handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()
