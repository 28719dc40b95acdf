"""Answers the API server's admission reviews over HTTPS. What may come in is decided by `review`, in processes of their own (`judges`).
Bodies are received and passed on unread: parsing one could block the controller's loop for too long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from controller.webhook.connections import Listener
from controller.webhook.judges import Busy, NoReview, Verdict
from elastic.api import webhook

log = logging.getLogger(__name__)

LARGEST_OBJECT = 3 * 512 * 1024
"""etcd takes no request of more than 1.5 MiB."""
ENVELOPE = 64 * 1024
"""Who asks, with groups, and with which options."""
LARGEST_REVIEW = 2 * LARGEST_OBJECT + ENVELOPE
"""An update carries the object as it was and as it would be."""
SMALL = 64 * 1024
"""Nearly all reviews are; as many as there are connections find room."""
MOST_HELD = 16 * 1024 * 1024
"""Bytes of larger bodies that are received, wait or are judged; of one address no more than half."""
RECEIVE_S = 2.0


class Room:
    """How many bytes of bodies there are, in all and by address."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    def take(self, address: str, size: int) -> bool:
        if self._held.total() + size > self._most or self._held[address] + size > self._most // 2:
            return False
        self._held[address] += size
        return True

    def give_back(self, address: str, size: int) -> None:
        self._held[address] -= size
        self._held += Counter()  # forgets addresses that hold nothing


@asynccontextmanager
async def serving(opened: socket.socket, *, tls: ssl.SSLContext, judge: Callable[[bytes, str], Awaitable[Verdict]]) -> AsyncIterator[None]:
    """Serves for the length of the block; requests that have come are answered before it ends."""
    reception = _Reception(judge)
    running = asyncio.create_task(Listener(reception.answer).run(opened, tls))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Reception:
    def __init__(self, judge: Callable[[bytes, str], Awaitable[Verdict]]) -> None:
        self._judge = judge
        self._room = Room(MOST_HELD)

    async def answer(self, request: web.BaseRequest, address: str) -> web.Response:
        if request.path != webhook.PATH or request.method != "POST":
            return _said(404, f"reviews are answered at POST {webhook.PATH}")
        size = request.content_length
        if size is None or "Content-Encoding" in request.headers:
            return _said(411, "send an AdmissionReview with its Content-Length, not compressed")
        if size > LARGEST_REVIEW:
            return _said(413, f"the review has {size} bytes; the most is {LARGEST_REVIEW}")
        if size > SMALL and not self._room.take(address, size):
            return _said(503, "there are too many large reviews at a time, try again")
        try:
            async with asyncio.timeout(RECEIVE_S):
                body = await request.content.readexactly(size) if size else b""
            verdict = await self._judge(body, address)
        except (TimeoutError, asyncio.IncompleteReadError):
            return _said(408, f"the review did not arrive within {RECEIVE_S:.0f} s")
        except NoReview as error:
            return _said(400, str(error))
        except Busy:
            return _said(503, "there are too many reviews at a time, try again")
        finally:
            if size > SMALL:
                self._room.give_back(address, size)
        return web.Response(body=verdict.body, content_type="application/json")


def _said(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")
