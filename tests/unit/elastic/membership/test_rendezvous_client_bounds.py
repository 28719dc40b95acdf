"""The client of the rendezvous server: its answers have a limit in bytes, and it follows no redirect."""

from __future__ import annotations

import pytest
from aiohttp import web
from served_api import served

from elastic.certificates import make_ca
from elastic.membership import client
from elastic.membership.client import RendezvousClient, RendezvousError

CA = make_ca("test").certificate.decode()


async def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_ANSWER", 1000)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 100_000)

    async with served(answer) as behind, made(behind.access.server) as server:
        with pytest.raises(RendezvousError, match="its answer is longer than 1000 bytes"):
            await server.world("uid")


async def test_no_redirect_is_followed() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/stolen"})

    async with served(answer) as behind, made(behind.access.server) as server:
        with pytest.raises(RendezvousError, match="307"):
            await server.lead(1)
    assert asked == ["/v1/leader/1"]


def made(url: str) -> RendezvousClient:
    async def token() -> str:
        return "t"

    return RendezvousClient(url, token=token, ca=CA)
