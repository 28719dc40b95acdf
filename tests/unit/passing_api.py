"""Pass requests on to another API server, as the laptop's API server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import web
from served_api import served
from yarl import URL

from elastic.local.apiserver.aggregation import passing
from elastic.local.apiserver.aggregation.remotes import Remote
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json, StatusError


def remote(group: str, version: str = "v1", *, priority: int = 100, **fields: object) -> Remote:
    made = Remote(f"{version}.{group}", group, version, "s", "ns", 443, "", False, priority, 10)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Everybody:
    def allows(self, user: User, attributes: Json) -> tuple[bool, str]:
        return True, ""


@asynccontextmanager
async def passing_to(server: str) -> AsyncIterator[tuple[aiohttp.ClientSession, Remote]]:
    """Yield a session whose requests are passed on to that server."""
    async with aiohttp.ClientSession(server) as session:
        url, known = URL(server), remote("a.example", available=True)
        asking: Any = SimpleNamespace(
            request=lambda _, method, raw, **more: session.request(method, raw, **more),
            connection=lambda _: asyncio.open_connection(url.host, url.port),
        )
        everybody: Any = Everybody()
        passer = passing.Passing(everybody, asking, None)

        async def ours(request: web.Request) -> web.StreamResponse:
            try:
                return await passer.serve(request, known, User(request.headers.get("By", "ann")))
            except StatusError as error:
                return web.Response(status=error.code, text=error.message)

        async with served(ours) as front, aiohttp.ClientSession(front.access.server) as client:
            yield client, known


THINGS = "/apis/a.example/v1/namespaces/n/things"
