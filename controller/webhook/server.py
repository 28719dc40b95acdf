"""Answer the API server's admission reviews over HTTPS.

`review` decides what is admitted, in separate processes (`judges`). Bodies are received and passed on without being parsed, because that
could block the controller's loop for too long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from elastic.api import webhook
from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.served import served
from elastic_training.controller.webhook.judges import Busy, NoReview, Verdict

BOUNDS = Bounds(most=128, strangers=128, of_one_address=64, first_request_s=3.0, oldest_goes_at_once=True, pace_s=0.005)
"""A TLS handshake takes a millisecond or two of the controller's time; hence the pace."""
BACKLOG = 128
STOP_S = 1.0

LARGEST_OBJECT = 3 * 512 * 1024
"""etcd takes no request of more than 1.5 MiB."""
ENVELOPE = 64 * 1024
"""Bytes of the review without the object: the user with groups, and the options."""
LARGEST_REVIEW = 2 * LARGEST_OBJECT + ENVELOPE
"""An update contains the old and the new object."""
SMALL = 64 * 1024
"""Bytes of a small review, as nearly all are. There is room for one on each connection."""
MOST_HELD = 16 * 1024 * 1024
"""The most bytes of larger bodies that are received, wait or are judged. One address may have at most half of them."""
RECEIVE_S = 2.0


class Room:
    """Count the bytes of bodies that are held, in all and by address."""

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


def serving(
    opened: socket.socket, *, tls: ssl.SSLContext, judge: Callable[[bytes, str], Awaitable[Verdict]]
) -> AbstractAsyncContextManager[None]:
    """Serve for the length of the block. Requests that have come are answered before it ends."""
    listener = Listener(BOUNDS)
    app = web.Application(middlewares=[listener.middleware])
    app.router.add_route("*", "/{tail:.*}", _Reception(judge).answer)
    silent = logging.getLogger(f"{__name__}.http")
    silent.setLevel(logging.CRITICAL)  # no log line for callers that do not speak HTTP
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=BOUNDS.pause_s,
        lingering_time=0,
        logger=silent,
        shutdown_timeout=STOP_S,
    )
    return served(runner, listener, opened, tls=tls, backlog=BACKLOG)


class _Reception:
    def __init__(self, judge: Callable[[bytes, str], Awaitable[Verdict]]) -> None:
        self._judge = judge
        self._room = Room(MOST_HELD)

    async def answer(self, request: web.Request) -> web.Response:
        response = await self._answer(request, address=request.remote or "")
        if response.status != web.HTTPOk.status_code:
            response.force_close()  # the rest of the request is not read, and the peer's next try costs it a new handshake
        return response

    async def _answer(self, request: web.Request, *, address: str) -> web.Response:
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
