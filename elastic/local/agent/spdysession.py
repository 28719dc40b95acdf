"""Serve a SPDY connection: streams open, bring data and end, and readers get these events in their order.

The headers of a stream say what it is for; this module does not know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from aiohttp import WSMsgType, web

from elastic.local.agent import spdy
from elastic.local.agent.spdy import Data, Encoder, Opened, Ping, Reset

CHUNK = 64 * 1024
LEAVE_S = 5.0
MOST_STREAMS = 1000
Event = Opened | Data | Reset


class Pipe(Protocol):
    """A connection for bytes in both directions."""

    async def read(self) -> bytes:
        """Return the next bytes, or nothing if the other side has gone."""

    async def write(self, data: bytes) -> None: ...


class Connection:
    """A connection that was taken over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(CHUNK)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


class Tunnel:
    """A WebSocket whose messages are pieces of the stream of bytes."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def read(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type is not WSMsgType.BINARY:
                return b""
            # kubectl also sends empty messages, which do not mean the end.
            if message.data:
                return bytes(message.data)

    async def write(self, data: bytes) -> None:
        await self._socket.send_bytes(data)


class Session:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._decoder, self._encoder = spdy.Decoder(), Encoder()
        self._last = 0
        self._open: set[int] = set()

    async def events(self) -> AsyncIterator[Event]:
        """Yield events until the other side goes. A stream is accepted before it is reported; above the limit it is refused."""
        while received := await self._pipe.read():
            for frame in self._decoder.feed(received):
                match frame:
                    case Opened(stream):
                        if len(self._open) >= MOST_STREAMS or stream <= self._last:
                            await self._pipe.write(spdy.reset(stream, spdy.REFUSED))
                            continue
                        self._last = stream
                        self._open.add(stream)
                        await self._pipe.write(self._encoder.accepted(stream))
                        yield frame
                    case Ping(number):
                        await self._pipe.write(spdy.ping(number))
                    case Data(stream) | Reset(stream):
                        if stream in self._open:
                            yield frame

    async def send(self, stream: int, payload: bytes, *, ended: bool = False) -> None:
        await self._pipe.write(spdy.data(stream, payload, ended=ended))

    async def reset(self, stream: int) -> None:
        self.forget(stream)
        await self._pipe.write(spdy.reset(stream))

    def forget(self, stream: int) -> None:
        """Forget a stream that has ended in both directions, because the number of open streams is bounded."""
        self._open.discard(stream)

    async def leave(self) -> None:
        """Wait until the other side has read everything and goes by itself. Otherwise data would be lost."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._pipe.write(spdy.going_away(self._last))
                while await self._pipe.read():
                    pass
        except (TimeoutError, ConnectionError):
            pass
