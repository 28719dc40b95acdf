"""Answers probes and scrapes: /healthz, /readyz and /metrics, on the ports that were asked for."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

ALL_ADDRESSES = "0.0.0.0"


class PortTaken(RuntimeError):
    """A port that was asked for cannot be had."""


def taken(flags: str, port: int, error: OSError) -> PortTaken:
    return PortTaken(f"{flags} is {port}, which cannot be listened on: {error.strerror}; choose another port")


@asynccontextmanager
async def serving(*, health_port: int, metrics_port: int, is_ready: Callable[[], bool], registry: CollectorRegistry) -> AsyncIterator[None]:
    """Serves for the length of the block; a port of 0 is not served."""

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
    runners = []
    try:
        for port, found in routes.items():
            if not port:
                continue
            app = web.Application(client_max_size=1024)
            app.add_routes(found)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
            await runner.setup()
            runners.append(runner)
            try:
                await web.TCPSite(runner, ALL_ADDRESSES, port).start()
            except OSError as error:
                flags = " and ".join(flag for flag, chosen in ports.items() if chosen == port)
                raise taken(flags, port, error) from error
        yield
    finally:
        for runner in runners:
            await runner.cleanup()
