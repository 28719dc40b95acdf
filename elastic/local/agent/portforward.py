"""Carry connections of `kubectl port-forward` to ports of a pod.

They come over SPDY, plain or inside a WebSocket, with a pair of streams for each connection. The Python client uses a WebSocket with a pair
of channels for each port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from elastic.local.agent.spdy import Data, Opened, Reset, SpdyError
from elastic.local.agent.spdysession import Session
from elastic.local.sandbox import SandboxError
from elastic.local.sandbox.channel import HolderGone

SPDY_PROTOCOL, TUNNEL_PROTOCOL = "portforward.k8s.io", "SPDY/3.1+portforward.k8s.io"
CHANNEL_PROTOCOL = "v4.channel.k8s.io"
CHUNK = 32 * 1024
WAITING = 32
MOST_PORTS = 64
Dial = Callable[[int], Awaitable[socket.socket]]


class Lane(Protocol):
    """The client's side of a connection."""

    async def send(self, data: bytes) -> None: ...

    async def end(self, problem: str) -> None:
        """End the connection, because nothing more comes from the pod. `problem` is empty if it ended normally."""


@dataclass(slots=True)
class _Incoming:
    """The client's data on a lane, and None for its end. `put` waits if the queue is full, which slows the client down."""

    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(WAITING))
    is_over: bool = False

    async def put(self, data: bytes | None) -> None:
        if not self.is_over:
            await self.queue.put(data)

    def close(self) -> None:
        """Note that the reader has gone, so that callers of `put` do not wait any more."""
        self.is_over = True
        while not self.queue.empty():
            self.queue.get_nowait()


async def _carry(lane: Lane, incoming: _Incoming, port: int, dial: Dial) -> None:
    """Carry a connection from its first byte to its last."""
    problem = ""
    try:
        try:
            connection = await dial(port)
        except (OSError, SandboxError, HolderGone) as error:
            problem = f"failed to connect to port {port}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
            return
        reader, writer = await asyncio.open_connection(sock=connection)
        sending = asyncio.create_task(_inwards(incoming, writer))
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(CHUNK):
                    await lane.send(data)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.close()
    finally:
        incoming.close()
        with contextlib.suppress(ConnectionError):
            await lane.end(problem)


async def _inwards(incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while (data := await incoming.queue.get()) is not None:
            writer.write(data)
            await writer.drain()
        writer.write_eof()


# ---------------------------------------------------------------------- SPDY
@dataclass(slots=True)
class _Pair:
    session: Session
    port: int
    data: int = 0
    error: int = 0

    async def send(self, data: bytes) -> None:
        await self.session.send(self.data, data)

    async def end(self, problem: str) -> None:
        await self.session.send(self.error, problem.encode(), ended=True)
        await self.session.send(self.data, b"", ended=True)
        self.session.forget(self.error)
        self.session.forget(self.data)


async def over_spdy(session: Session, dial: Dial) -> None:
    """Serve a client over SPDY until it goes."""
    pairs: dict[str, _Pair] = {}
    incoming: dict[int, _Incoming] = {}
    with contextlib.suppress(SpdyError, ConnectionError):
        async with _Lanes() as lanes:
            async for event in session.events():
                match event:
                    case Opened(stream, headers):
                        pair = _paired(pairs, session, stream, headers)
                        if pair is None:
                            await session.reset(stream)
                        elif pair.data and pair.error:
                            incoming[pair.data] = _Incoming()
                            lanes.begin(_carry(pair, incoming[pair.data], pair.port, dial))
                    case Data(stream, data, ended) if stream in incoming:
                        if data:
                            await incoming[stream].put(data)
                        if ended:
                            await incoming.pop(stream).put(None)
                    case Reset(stream) if stream in incoming:
                        await incoming.pop(stream).put(None)


def _paired(pairs: dict[str, _Pair], session: Session, stream: int, headers: dict[str, str]) -> _Pair | None:
    """Return the pair of streams of this stream, or None if its headers are invalid. Complete pairs are not kept."""
    name, port = headers.get("requestid", ""), headers.get("port", "")
    if not port.isdigit() or not 0 < int(port) < 65536:
        return None
    pair = pairs.setdefault(name, _Pair(session, int(port)))
    match headers.get("streamtype"):
        case "data":
            pair.data = stream
        case "error":
            pair.error = stream
        case _:
            return None
    if pair.data and pair.error:
        del pairs[name]
    return pair


class _Lanes:
    """The open connections. They end with the link that carries them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> _Lanes:
        return self

    def begin(self, carrying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(carrying)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self.finished()


# ---------------------------------------------------------------------- channels
@dataclass(slots=True)
class _Channels:
    socket: web.WebSocketResponse
    number: int

    async def send(self, data: bytes) -> None:
        await self.socket.send_bytes(bytes([self.number]) + data)

    async def end(self, problem: str) -> None:
        if problem:
            await self.socket.send_bytes(bytes([self.number + 1]) + problem.encode())


async def over_channels(ws: web.WebSocketResponse, ports: list[int], dial: Dial) -> None:
    """Serve a client with one connection for each port, until the last one has ended or the client goes."""
    incoming = [_Incoming() for _ in ports]
    with contextlib.suppress(ConnectionError):
        async with _Lanes() as lanes:
            for i, port in enumerate(ports):
                for channel in (2 * i, 2 * i + 1):
                    await ws.send_bytes(bytes([channel]) + struct.pack("<H", port))
                lanes.begin(_carry(_Channels(ws, 2 * i), incoming[i], port, dial))
            listening = asyncio.create_task(_listen(ws, incoming))
            over = asyncio.create_task(lanes.finished())
            try:
                await asyncio.wait((listening, over), return_when=asyncio.FIRST_COMPLETED)
            finally:
                listening.cancel()
                over.cancel()
                await asyncio.gather(listening, over, return_exceptions=True)
            await ws.close()


async def _listen(ws: web.WebSocketResponse, incoming: list[_Incoming]) -> None:
    async for message in ws:
        if message.type is WSMsgType.BINARY and len(message.data) > 1:
            lane, is_error = divmod(message.data[0], 2)
            if not is_error and lane < len(incoming):
                await incoming[lane].put(message.data[1:])
