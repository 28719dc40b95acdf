"""Passes a request that asks for another protocol (exec, attach, port-forward) on to a node's agent, and then bytes both ways.

What the two sides speak, SPDY or WebSocket, is their own business.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from aiohttp import web

from elastic.local.apiserver.errors import StatusError
from elastic.local.takeover import pass_on, taken_over

CONNECT_S = 5.0
ANSWER_S = 60.0
MOST_HEAD, MOST_REFUSAL = 64 * 1024, 64 * 1024
KEPT = ("Connection", "Upgrade", "User-Agent", "Origin", "X-Stream-Protocol-Version")
"""Of the client's headers, what the agent is told, with all that begin with Sec-WebSocket-; its credentials are for us alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]


async def passed_on(request: web.Request, *, address: tuple[str, int], path: str, context: ssl.SSLContext) -> web.StreamResponse:
    """Returns when both sides have gone. Raises OSError where the agent cannot be reached, StatusError where it refuses."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(*address, ssl=context, limit=MOST_HEAD)
    try:
        writer.write(_head(request, address[0], path))
        async with asyncio.timeout(ANSWER_S):
            answer = _parsed(await reader.readuntil(b"\r\n\r\n"))
            if answer.status != 101:
                raise await _refusal(answer, reader)
        async with taken_over(request, answer.headers) as taken:
            ways = [asyncio.create_task(pass_on(taken.reader, writer)), asyncio.create_task(pass_on(reader, taken.writer))]
            try:
                await asyncio.wait(ways)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            return taken.response
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise OSError(f"the agent's answer is no HTTP: {error}") from None
    finally:
        writer.close()


def _head(request: web.Request, host: str, path: str) -> bytes:
    kept = [(k, v) for k, v in request.headers.items() if k.title() in KEPT or k.lower().startswith("sec-websocket-")]
    lines = [f"{request.method} {path} HTTP/1.1", f"Host: {host}", "Content-Length: 0", *(f"{k}: {v}" for k, v in kept)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _parsed(head: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("the agent's answer is no HTTP")
    pairs = (line.partition(":") for line in lines if line)
    return Answer(int(words[1]), {k.strip().title(): v.strip() for k, _, v in pairs})


async def _refusal(answer: Answer, reader: asyncio.StreamReader) -> StatusError:
    length = answer.headers.get("Content-Length", "")
    body = await reader.read(MOST_REFUSAL) if not length.isdigit() else await reader.readexactly(min(int(length), MOST_REFUSAL))
    reason = {400: "BadRequest", 403: "Forbidden", 404: "NotFound"}.get(answer.status, "InternalError")
    return StatusError(answer.status if answer.status >= 400 else 502, reason, body.decode(errors="replace").strip() or "the agent refused")
