"""Serve an API made of one handler, and reach it with our client."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from elastic.kube.access import Access
from elastic.kube.client import Kube
from elastic.kube.resources import Object

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[Kube]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    kube = Kube(Access(server=f"http://127.0.0.1:{port}", tls=None, token=lambda: "t"))
    try:
        yield kube
    finally:
        await kube.close()
        await runner.cleanup()


def refusal(code: int, reason: str, **details: object) -> web.Response:
    status = {"kind": "Status", "code": code, "reason": reason, "message": f"{reason} it is", "details": details}
    return web.json_response(status, status=code)


def pod(name: str, version: int, uid: str = "") -> Object:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}}
