"""Answers the API server's admission reviews over HTTPS. What may come in is decided by `review`; here are sockets and bodies."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from controller.webhook.review import Answer, Request, Review
from elastic.api import webhook

LARGEST_REVIEW = 8 * 1024 * 1024
"""Two objects of the largest size that an API server takes."""
STOP_S = 1.0


@asynccontextmanager
async def serving(opened: socket.socket, *, tls: ssl.SSLContext, judge: Callable[[Request], Answer]) -> AsyncIterator[None]:
    """Serves for the length of the block; requests that have come are answered before it ends."""

    async def validate(request: web.Request) -> web.Response:
        try:
            review = msgspec.json.decode(await request.read(), type=Review)
        except (msgspec.DecodeError, RecursionError) as error:
            raise web.HTTPBadRequest(text=f"expected an AdmissionReview with a request: {error}\n") from error
        return web.Response(body=msgspec.json.encode(judge(review.request)), content_type="application/json")

    app = web.Application(client_max_size=LARGEST_REVIEW)
    app.add_routes([web.post(webhook.PATH, validate)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S)
    await runner.setup()
    try:
        await web.SockSite(runner, opened, ssl_context=tls).start()
        yield
    finally:
        await runner.cleanup()
