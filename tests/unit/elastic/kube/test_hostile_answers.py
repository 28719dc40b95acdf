"""Check that the client is told why an answer of a pod behind pods/proxy or of an extension API server cannot be sent on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from passing_api import THINGS, passing_to
from test_interim_answers import PATH, proxying_to, sending

BODY = b"Content-Length: 3000\r\n\r\n" + b"x" * 3000
NO_HTTP = "error trying to reach service: the answer is no HTTP"
HOSTILE = {
    b"HTTP/1.1 200 OK\r\nContent-Type: a\rb\r\n": NO_HTTP,
    b"HTTP/1.1 200 OK\r\nContent-Type: ;;\x1b[31m;=\r\n": f"{NO_HTTP}: 'Content-Type' has control characters",
    b"HTTP/1.1 200 OK\r\nSet-Cookie: \x01=;\r\n": f"{NO_HTTP}: 'Set-Cookie' has control characters",
    b"HTTP/1.1 418 No\r\na b: c\r\n": NO_HTTP,
    b"HTTP/1.1 600 n\xff\x1bo\r\n": f"{NO_HTTP}: its status is 600",
    b"HTTP/1.1 000 No\r\n": f"{NO_HTTP}: its status is 0",
    b"HTTP/1.1 99999 No\r\n": NO_HTTP,
    b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n": f"{NO_HTTP}: its status is 101",
    b"\x00\x01\x02\r\n": NO_HTTP,
}
OFFER = {"Connection": "Upgrade", "Upgrade": "tcp"}


@asynccontextmanager
async def asking(way: str, answer: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
    """Yield the client's answer to a plain request if the backend answers with these bytes."""
    async with sending(answer) as (port, _):
        if way == "proxy":
            async with proxying_to(port) as client, client.get(PATH) as heard:
                yield heard
        else:
            headers = OFFER if way == "upgrade" else {}
            async with passing_to(f"http://127.0.0.1:{port}") as (client, _), client.get(THINGS, headers=headers) as heard:
                yield heard


@pytest.mark.parametrize("way", ["proxy", "API service"])
@pytest.mark.parametrize("head", HOSTILE, ids=repr)
async def test_an_answer_that_cannot_be_sent_on_is_an_error_with_words(way: str, head: bytes) -> None:
    """The connection was closed without an answer, or the request hung."""
    async with asking(way, head + BODY) as heard:
        assert (heard.status, (await heard.text()).strip()) == (503, HOSTILE[head])


@pytest.mark.parametrize("head", [head for head in HOSTILE if not head.startswith(b"HTTP/1.1 101")], ids=repr)
async def test_an_answer_to_an_upgrade_that_cannot_be_sent_on_is_an_error_with_words(head: bytes) -> None:
    async with asking("upgrade", head + BODY) as heard:
        assert heard.status == 503
        assert (await heard.text()).startswith("error trying to reach service: ")


@pytest.mark.parametrize("status", ["100 Continue", "204 No", "304 No"])
async def test_an_answer_to_an_upgrade_that_has_no_body_is_not_waited_for(status: str) -> None:
    async with asking("upgrade", f"HTTP/1.1 {status}\r\n\r\n".encode()) as heard:
        said = f"error trying to reach service: invalid upgrade response: status code {status[:3]}\n"
        assert (heard.status, await heard.text()) == (503, said)


@pytest.mark.parametrize("way", ["proxy", "API service", "upgrade"])
async def test_the_words_of_its_status_are_not_sent_on(way: str) -> None:
    async with asking(way, b"HTTP/1.1 418 n\xff\x1bo\r\n" + BODY) as heard:
        assert (heard.status, heard.reason, await heard.read()) == (418, "I'm a Teapot", b"x" * 3000)


async def test_an_answer_through_the_proxy_that_breaks_off_is_not_filled_up_with_an_error() -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\nConnection: close\r\n\r\nwhole"
    async with sending(short, closes=True) as (port, _), proxying_to(port) as client, client.get(PATH) as heard:
        with pytest.raises(aiohttp.ClientPayloadError):
            await heard.read()
