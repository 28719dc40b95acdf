"""Send a watch over its connection in pieces, so that a client that does not read holds one piece in memory and not everything."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from elastic.local.apiserver.watch import SENT_AT_ONCE, Ended, Watcher

BOOKMARK_EVERY_S = 60.0
STALLED_S = 60.0
"""Seconds after which a client that reads nothing is disconnected."""


async def send(request: web.Request, response: web.StreamResponse, watcher: Watcher, *, until: float) -> None:
    """Send the watch until it ends, for whatever reason."""
    transport = request.transport
    try:
        await response.prepare(request)
        watcher.send_at_once(lambda text: _sent(transport, text))
        await _send_until(response, watcher, until)
        await response.write_eof()
    except TimeoutError:
        if transport is not None:
            transport.abort()
    except ConnectionError:
        pass


async def _send_until(response: web.StreamResponse, watcher: Watcher, until: float) -> None:
    bookmark_at = time.monotonic() + BOOKMARK_EVERY_S
    while (left := until - time.monotonic()) > 0:
        try:
            text = await watcher.next(min(left, max(bookmark_at - time.monotonic(), 0.0)))
        except Ended:
            return
        if text:
            await _write(response, text)
        elif time.monotonic() >= bookmark_at:
            bookmark_at = time.monotonic() + BOOKMARK_EVERY_S
            if watcher.bookmarks and not watcher.is_behind:
                await _write(response, watcher.bookmark())


async def _write(response: web.StreamResponse, text: bytes) -> None:
    view = memoryview(text)
    for start in range(0, len(view), SENT_AT_ONCE):
        async with asyncio.timeout(STALLED_S):
            await response.write(view[start : start + SENT_AT_ONCE])


def _sent(transport: asyncio.WriteTransport | None, text: bytes) -> bool:
    """Write a chunk directly to the transport, unless the client reads slowly, because a task would wake up for it only later."""
    if transport is None or transport.is_closing() or transport.get_write_buffer_size() > SENT_AT_ONCE:
        return False
    transport.write(b"%x\r\n%b\r\n" % (len(text), text))
    return True
