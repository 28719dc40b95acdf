"""Answer probes and scrapes: /healthz, /readyz and /metrics, on the configured ports."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.served import served

ALL_ADDRESSES = "0.0.0.0"
BOUNDS = Bounds(most=64, strangers=64, of_one_address=32, first_request_s=5.0, body_s=5.0, oldest_goes_at_once=True)
"""Probes and scrapes need no credentials, so a crowd that only connects must not keep them waiting."""
BACKLOG = 64


class PortTaken(RuntimeError):
    """A port that was asked for cannot be had."""


def taken(flags: str, port: int, error: OSError) -> PortTaken:
    return PortTaken(f"{flags} is {port}, which cannot be listened on: {error.strerror}; choose another port")


@asynccontextmanager
async def serving(*, health_port: int, metrics_port: int, is_ready: Callable[[], bool], registry: CollectorRegistry) -> AsyncIterator[None]:
    """Serve for the length of the block. A port of 0 is not served."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if is_ready() else web.Response(status=503, text="the caches are not synced yet\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain", charset="utf-8")

    ports = {"--health-port": health_port, "--metrics-port": metrics_port}
    routes: dict[int, list[web.RouteDef]] = {}
    routes.setdefault(health_port, []).extend([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    routes.setdefault(metrics_port, []).append(web.get("/metrics", metrics))
    async with AsyncExitStack() as stack:
        for port, found in routes.items():
            if not port:
                continue
            try:
                opened = socket.create_server((ALL_ADDRESSES, port), backlog=BACKLOG)
            except OSError as error:
                flags = " and ".join(flag for flag, chosen in ports.items() if chosen == port)
                raise taken(flags, port, error) from error
            await stack.enter_async_context(_serving(opened, found))
        yield


def _serving(opened: socket.socket, routes: list[web.RouteDef]) -> AbstractAsyncContextManager[None]:
    listener = Listener(BOUNDS)
    app = web.Application(client_max_size=1024, middlewares=[listener.middleware])
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    return served(runner, listener, opened, tls=None, backlog=BACKLOG)
