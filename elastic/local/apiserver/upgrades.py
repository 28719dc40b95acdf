"""Pass on requests that ask for another protocol: exec, attach and port-forward.

The request goes to a node's agent or to the server of an API service. Then bytes flow both ways. This module does not care whether the two
sides speak SPDY or WebSocket.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from elastic.local.apiserver.errors import StatusError
from elastic.local.takeover import Ends, both_ways, taken_over

CONNECT_S = 5.0
ANSWER_S = 60.0
MOST_HEAD, MOST_REFUSAL = 64 * 1024, 64 * 1024
KEPT = ("Connection", "Upgrade", "User-Agent", "Origin", "X-Stream-Protocol-Version")
"""The client's headers that the agent gets, besides all that begin with Sec-WebSocket-. The client's credentials are for us alone."""
_FIRST = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:.*")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header may have. An answer of ours with them would not be sent."""

Headers = list[tuple[str, str]]
Connect = Callable[[], Awaitable[Ends]]
"""Opens a connection. Raises OSError with the reason if that fails."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]


class Refused(Exception):
    """The other side did not agree to change the protocol."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        super().__init__(body.decode(errors="replace").strip())
        self.answer, self.body = answer, body


def is_upgrade(request: web.Request) -> bool:
    return "upgrade" in ",".join(request.headers.getall("Connection", ())).lower() and bool(request.headers.get("Upgrade"))


async def passed_on(request: web.Request, *, address: tuple[str, int], path: str, context: ssl.SSLContext) -> web.StreamResponse:
    """Pass the request on until both sides have gone. Raise OSError if the agent cannot be reached, and StatusError if it refuses."""
    kept = [(k, v) for k, v in request.headers.items() if k.title() in KEPT or k.lower().startswith("sec-websocket-")]
    try:
        return await carried(request, _to(address, context), host=address[0], path=path, headers=kept)
    except Refused as refused:
        raise _status(refused) from None


async def carried(request: web.Request, connect: Connect, *, host: str, path: str, headers: Headers) -> web.StreamResponse:
    """Carry a request without a body until both sides have gone. Raise OSError if the other side cannot be reached, or Refused."""
    answer, far = await _upgraded(_head(f"{request.method} {path}", host, headers), connect)
    try:
        async with taken_over(request, answer.headers) as taken:
            await both_ways((taken.reader, taken.writer), far)
            return taken.response
    finally:
        far[1].close()


class Tunnels:
    """Connections to ports of pods that go through the agents of their nodes."""

    def __init__(self) -> None:
        self._carrying: set[asyncio.Task[None]] = set()

    async def dig(self, *, address: tuple[str, int], path: str, context: ssl.SSLContext) -> socket.socket:
        """Return a socket that behaves as if its other end were in the pod's network."""
        head = _head(f"GET {path}", address[0], [("Connection", "Upgrade"), ("Upgrade", "tcp")])
        try:
            _, far = await _upgraded(head, _to(address, context))
        except Refused as refused:
            raise _status(refused) from None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        near = await asyncio.open_connection(sock=ours)
        carrying = asyncio.create_task(both_ways(near, far))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)
        return theirs

    async def close(self) -> None:
        for carrying in self._carrying:
            carrying.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)


def _to(address: tuple[str, int], context: ssl.SSLContext) -> Connect:
    return lambda: asyncio.open_connection(*address, ssl=context, limit=MOST_HEAD)


async def _upgraded(head: bytes, connect: Connect) -> tuple[Answer, Ends]:
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await connect()
    try:
        writer.write(head)
        async with asyncio.timeout(ANSWER_S):
            answer = _parsed(await reader.readuntil(b"\r\n\r\n"))
            if answer.status != 101:
                raise Refused(answer, await _body(answer, reader))
    except BaseException as error:
        writer.close()
        if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError):
            raise OSError(f"the answer is no HTTP: {error}") from None
        raise
    return answer, (reader, writer)


def _head(what: str, host: str, headers: Headers) -> bytes:
    lines = [f"{what} HTTP/1.1", f"Host: {host}", "Content-Length: 0", *(f"{k}: {v}" for k, v in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _parsed(head: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    status = _FIRST.fullmatch(first)
    lines = [line for line in lines if line]
    if status is None or not all(_HEADER.fullmatch(line) and not CONTROL.search(line) for line in lines):
        raise OSError("the answer is no HTTP")
    pairs = (line.partition(":") for line in lines)
    return Answer(int(status[1]), {k.strip().title(): v.strip() for k, _, v in pairs})


async def _body(answer: Answer, reader: asyncio.StreamReader) -> bytes:
    if answer.status < 400:
        return b""  # such an answer may have no body, and its body gives no reason
    length = answer.headers.get("Content-Length", "")
    if not length.isdecimal() or len(length) > 9:
        return await reader.read(MOST_REFUSAL)
    return await reader.readexactly(min(int(length), MOST_REFUSAL))


def _status(refused: Refused) -> StatusError:
    answer = refused.answer
    reason = {400: "BadRequest", 403: "Forbidden", 404: "NotFound"}.get(answer.status, "InternalError")
    return StatusError(answer.status if answer.status >= 400 else 502, reason, str(refused) or "the agent refused")
