"""Bound the informational answers that a server can make an HTTP client read before its real answer.

aiohttp skips informational answers (100 Continue) without a limit, and one read of the socket can bring thousands of them. A total time
limit ends a flood. Until then the flood takes a whole core and holds the event loop up for 0.3 s at a time, or for seconds with uvloop.
A session with `response_class=BoundedAnswer` ends the request after MOST_INTERIM of them. It parses at most AT_ONCE bytes more.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import aiohttp

MOST_INTERIM = 16
AT_ONCE = 16 * 1024
"""Bytes that are parsed before the messages in them are counted: a message can be as short as 16."""


class Interim(aiohttp.ClientConnectionError):
    """More informational answers than any server has a use for."""

    def __init__(self) -> None:
        super().__init__(f"it sent more than {MOST_INTERIM} informational answers and no final one")


class Counted(asyncio.Protocol):
    """Sits between a connection and aiohttp's protocol, and counts the messages that the latter parses for one request."""

    def __init__(self, protocol: asyncio.Protocol, messages: aiohttp.DataQueue[Any], transport: asyncio.Transport) -> None:
        self._protocol, self._messages, self._transport = protocol, messages, transport
        self._count = len(messages)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), AT_ONCE):
            if start and self._transport.is_closing():
                return
            before = len(self._messages)
            self._protocol.data_received(data[start : start + AT_ONCE])
            self._count += len(self._messages) - before
            if self._count > MOST_INTERIM + 1:
                self._messages.set_exception(Interim())
                self._transport.abort()
                return

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class BoundedAnswer(aiohttp.ClientResponse):
    """An answer that limits the number of informational answers before it."""

    async def start(self, connection: Any) -> Self:
        """Read the head of the answer. Raises Interim instead of reading informational answers without end."""
        transport, messages = connection.transport, connection.protocol
        protocol = transport.get_protocol() if transport is not None else None
        # If a connection lacks these parts, aiohttp has closed it meanwhile, and `start` reports that.
        if not isinstance(protocol, asyncio.Protocol) or not isinstance(messages, aiohttp.DataQueue):
            await super().start(connection)
            return self
        transport.set_protocol(Counted(protocol, messages, transport))
        try:
            await super().start(connection)
        finally:
            transport.set_protocol(protocol)
        return self
