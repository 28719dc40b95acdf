"""Take over the connection of an HTTP request after an upgrade, for bytes in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from aiohttp import web

CHUNK = 64 * 1024
BUFFER = 256 * 1024


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Protocol(asyncio.StreamReaderProtocol):
    lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        super().connection_lost(exc)


@dataclass(frozen=True, slots=True)
class Taken:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    response: web.StreamResponse
    """Response that the request's handler must return in the end."""


@contextlib.asynccontextmanager
async def taken_over(request: web.Request, headers: Mapping[str, str]) -> AsyncIterator[Taken]:
    """Answer 101 with these headers and lend the connection. It is closed afterwards."""
    response = web.StreamResponse(status=101, headers=headers)
    response.force_close()
    await response.prepare(request)
    transport, before = request.transport, request.protocol
    if transport is None:
        raise ConnectionResetError("the client has gone")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER)
    protocol = _Protocol(reader)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    try:
        yield Taken(reader, asyncio.StreamWriter(transport, protocol, reader, loop), response)
    finally:
        if protocol.lost:
            loop.call_soon(before.connection_lost, None)
        else:
            transport.set_protocol(before)
            transport.close()


async def both_ways(one: Ends, other: Ends) -> None:
    """Pass bytes on in both directions until both sides have gone."""
    ways = [asyncio.create_task(pass_on(one[0], other[1])), asyncio.create_task(pass_on(other[0], one[1]))]
    try:
        await asyncio.wait(ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass bytes on until the source ends or the target has gone. Then close the target."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    with contextlib.suppress(ConnectionError):
        target.close()
