"""The server of an API service is passed a bounded number of requests at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from passing_api import THINGS, Everybody, passing_to, remote
from served_api import served

from elastic.certificates import issue, make_ca
from elastic.local.apiserver.aggregation import places
from elastic.local.apiserver.aggregation.asking import Asking
from elastic.local.apiserver.aggregation.places import MOST_AT_ONCE, Places
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json, StatusError


def test_a_server_is_passed_a_bounded_number_of_requests_at_once() -> None:
    server = Places("v1.a.example")
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_AT_ONCE):
            stack.enter_context(server.one())
        with pytest.raises(StatusError, match=r"v1\.a\.example has 200 requests") as refused, server.one():
            pass
        assert (refused.value.code, refused.value.headers) == (429, {"Retry-After": "1"})
    assert not server.held


async def test_a_client_that_has_not_sent_its_body_has_no_place_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each held one for a minute, with a request of a hundred bytes."""
    monkeypatch.setattr(places, "MOST_AT_ONCE", 1)
    has_come = asyncio.Event()

    def allows(_: Everybody, user: User, attributes: Json) -> tuple[bool, str]:
        has_come.set()
        return True, ""

    monkeypatch.setattr(Everybody, "allows", allows)

    async def extension(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    async with served(extension) as behind, asyncio.timeout(20), passing_to(behind.access.server) as (client, known):
        async with client.get(THINGS) as answer:
            assert answer.status == 200
        has_come.clear()
        base: Any = client._base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(f"GET {THINGS} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\n".encode())
        await has_come.wait()
        assert not known.places.held
        async with client.get(THINGS) as answer:
            assert answer.status == 200
        writer.write(b"body")
        assert (await reader.read()).endswith(b"body")
        writer.close()


async def test_requests_to_a_silent_server_keep_none_to_another_waiting(tmp_path: Path) -> None:
    """At the hundredth the check of all API services began to wait, and they were declared unavailable."""
    pair = issue(make_ca("ca"), "front-proxy")
    (tmp_path / "crt").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    dialled, other, ends = 0, asyncio.Event(), []

    async def dial(host: str, port: int) -> socket.socket:
        nonlocal dialled
        dialled += 1
        if host.startswith("other"):
            other.set()
        ours, theirs = socket.socketpair()
        ends.append(theirs)
        return ours

    asking = Asking(SimpleNamespace(dial=dial), tmp_path / "crt", tmp_path / "key")  # type: ignore[arg-type]

    async def ask(service: str) -> None:
        found = remote("a.example", service=service, unchecked=True)
        async with asking.request(found, "GET", "/", headers=(), timeout=aiohttp.ClientTimeout(total=None)):
            pass

    tasks = [asyncio.create_task(ask("silent")) for _ in range(MOST_AT_ONCE)] + [asyncio.create_task(ask("other"))]
    async with asyncio.timeout(20):
        await other.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asking.close()
    for end in ends:
        end.close()
