"""Serve an aiohttp application for the length of a block."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from elastic.runtime.listener import Listener


@asynccontextmanager
async def served(
    runner: web.AppRunner, listener: Listener, opened: socket.socket, *, tls: ssl.SSLContext | None, backlog: int
) -> AsyncIterator[None]:
    """Serve for the length of the block. Answer all earlier requests at its end. The listener's middleware is in the application."""
    await runner.setup()
    assert runner.server is not None
    listener.open([opened], runner.server, tls=tls, backlog=backlog)
    try:
        yield
    finally:
        await listener.close()
        opened.close()
        await listener.cleanup(runner)
