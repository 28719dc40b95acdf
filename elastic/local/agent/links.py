"""Carry the streams of `kubectl exec` and `kubectl attach` to a client.

They go over a WebSocket or over SPDY. In a WebSocket, the first byte of a message names its stream (`v4.channel.k8s.io`,
`v5.channel.k8s.io`). A real API server speaks SPDY to its nodes, which has separate streams. This module knows nothing about the program at
the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from aiohttp import WSMsgType, web

from elastic.local.agent.spdy import Data, Opened, Reset, SpdyError
from elastic.local.agent.spdysession import Connection, Event, Session
from elastic.local.descriptors import resize
from elastic.local.takeover import taken_over

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY = "SPDY/3.1"
SPDY_PROTOCOLS = ("v4.channel.k8s.io",)
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
NAMES = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}
STREAMS_S = 30.0


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that the client asked for."""

    stdin: bool
    stdout: bool
    stderr: bool
    terminal: bool

    @property
    def numbers(self) -> set[int]:
        """Numbers of the streams of a SPDY client. A terminal has one output, and a stream for its size."""
        wanted = {STDIN: self.stdin, STDOUT: self.stdout, STDERR: self.stderr and not self.terminal, RESIZE: self.terminal, ERROR: True}
        return {number for number, asked in wanted.items() if asked}


class ClientGone(Exception):
    """The client did not open the streams that it asked for, so there is no stream for an error."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__()
        self.response = response


class Link(Protocol):
    """A client's streams, by number."""

    response: web.StreamResponse

    def incoming(self) -> AsyncIterator[tuple[int, bytes | None]]:
        """Yield the client's data with the number of its stream, and None for a stream's end, until the client goes."""

    async def send(self, stream: int, data: bytes) -> None:
        """Send data on a stream. Raise ConnectionError if the client has gone."""

    async def end(self, status: dict[str, object]) -> None:
        """Tell the client how the program ended, and close the link."""


@contextlib.asynccontextmanager
async def linked(request: web.Request, streams: Streams) -> AsyncIterator[Link]:
    """Yield the client's streams, in the protocol that it asked for."""
    if request.headers.get("Upgrade", "").lower() != SPDY.lower():
        # There is no heartbeat: while a program does not read its input, nothing of the client is read, not even its answers to heartbeats.
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        yield _SocketLink(socket)
        return
    version = negotiated(request, SPDY_PROTOCOLS)
    headers = {"Connection": "Upgrade", "Upgrade": SPDY, "X-Stream-Protocol-Version": version}
    async with taken_over(request, headers) as taken:
        link = _SpdyLink(Session(Connection(taken.reader, taken.writer)), taken.response)
        try:
            async with asyncio.timeout(STREAMS_S):
                await link.gather(streams.numbers)
        except (TimeoutError, SpdyError, ConnectionError) as error:
            raise ClientGone(taken.response) from error
        yield link


def negotiated(request: web.Request, known: tuple[str, ...]) -> str:
    """Return the first of the client's protocols that this module speaks."""
    offered = [name.strip() for line in request.headers.getall("X-Stream-Protocol-Version", ()) for name in line.split(",")]
    found = next((name for name in offered if name in known), None)
    if found is None:
        raise web.HTTPForbidden(text=f"the protocols offered are {', '.join(offered)}, but only {', '.join(known)} is spoken here")
    return found


class _SocketLink:
    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.response: web.StreamResponse = socket
        self._socket = socket

    async def incoming(self) -> AsyncIterator[tuple[int, bytes | None]]:
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            stream, data = message.data[0], message.data[1:]
            if stream != CLOSE:
                yield stream, data
            elif data:
                yield data[0], None

    async def send(self, stream: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([stream]) + data)

    async def end(self, status: dict[str, object]) -> None:
        with contextlib.suppress(ConnectionError):
            await self.send(ERROR, json.dumps(status).encode())
            await self._socket.close()


class _SpdyLink:
    def __init__(self, session: Session, response: web.StreamResponse) -> None:
        self.response = response
        self._session, self._events = session, session.events()
        self._streams: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._early: list[Event] = []

    async def gather(self, wanted: set[int]) -> None:
        """Wait until the client has opened every stream. Keep the data that it sends meanwhile."""
        while not wanted <= self._streams.keys():
            event = await anext(self._events, None)
            if event is None:
                raise ConnectionResetError("the client has gone")
            if isinstance(event, Opened):
                number = NAMES.get(event.headers.get("streamtype", ""), -1)
                self._streams[number], self._numbers[event.stream] = event.stream, number
            else:
                self._early.append(event)

    async def incoming(self) -> AsyncIterator[tuple[int, bytes | None]]:
        for event in self._early:
            for said in self._said(event):
                yield said
        with contextlib.suppress(SpdyError, ConnectionError):
            async for event in self._events:
                for said in self._said(event):
                    yield said

    def _said(self, event: Event) -> list[tuple[int, bytes | None]]:
        number = self._numbers.get(event.stream, -1)
        match event:
            case Data(_, data, ended):
                return ([(number, data)] if data else []) + ([(number, None)] if ended else [])
            case Reset():
                return [(number, None)]
        return []

    async def send(self, stream: int, data: bytes) -> None:
        if stream in self._streams:
            await self._session.send(self._streams[stream], data)

    async def end(self, status: dict[str, object]) -> None:
        with contextlib.suppress(ConnectionError):
            await self._session.send(self._streams[ERROR], json.dumps(status).encode(), ended=True)
            for number in (STDOUT, STDERR):
                if number in self._streams:
                    await self._session.send(self._streams[number], b"", ended=True)
            await self._session.leave()


def resized(terminal: int, said: bytes) -> None:
    """Give a terminal the size that the client sent. It may send several sizes at once, each on a line; the last one counts."""
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, struct.error):
        size = json.loads(said.split()[-1])
        resize(terminal, rows=size["Height"], columns=size["Width"])


def outcome(code: int, words: str) -> dict[str, object]:
    if words:
        return failure(words)
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure(words: str) -> dict[str, object]:
    return {"metadata": {}, "status": "Failure", "message": words, "reason": "InternalError", "code": 500}
