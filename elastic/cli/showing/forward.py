"""Carry connections to a port of a pod through the API server.

Each connection has a WebSocket of its own (`v4.channel.k8s.io`), as with `kubectl port-forward` over SPDY. This module does not read what
the two sides say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import aiohttp

from elastic.kube.client import NO_UPGRADE, Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS

NO_RIGHT = "forwarding ports to the dashboard needs the rights to get and to create pods/portforward in namespace {namespace}"
"""Message for a missing right. Kubernetes before 1.35 needs only `get`, since a WebSocket begins with a GET."""
PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
PORT_BYTES = 2
"""Length of the port's number, with which each channel begins."""
CHUNK = 32 * 1024
MOST_CONNECTIONS = 64


class Target(NamedTuple):
    """The pod to connect to."""

    namespace: str
    name: str
    uid: str


class Forward:
    """Connects to a pod. `pod` finds it for each connection, so a replaced pod is found too."""

    def __init__(self, kube: Kube, pod: Callable[[], Awaitable[Target]], *, port: int, tell: Callable[[str], None]) -> None:
        self._kube, self._pod, self._port, self._tell = kube, pod, port, tell
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)

    async def try_once(self) -> None:
        """Raise KubeError if no connection to the pod is possible."""
        async with self._connected():
            pass

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        pod = await self._pod()
        path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="portforward")
        try:
            async with self._kube.websocket(path, params={"ports": str(self._port)}, protocol=PROTOCOL) as socket:
                # A request names no uid: another pod may have got the name before it arrived.
                if await self._pod() != pod:
                    raise KubeError(code=0, reason="NoDashboard", message="the dashboard's pod was replaced meanwhile; try again")
                yield socket
        except KubeError as error:
            if error.code != 403 or error.reason != NO_UPGRADE:
                raise
            raise KubeError(code=403, reason="NoRight", message=NO_RIGHT.format(namespace=pod.namespace)) from error

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection until either side ends it."""
        try:
            async with self._room, self._connected() as socket:
                await _either(_up(reader, socket), self._down(socket, writer))
        except KubeError as error:
            self._tell(error.message)
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            self._tell(f"the connection to the dashboard's pod was lost: {error or type(error).__name__}")
        finally:
            writer.close()

    async def _down(self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        to_skip = {DATA: PORT_BYTES, ERROR: PORT_BYTES}
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data or message.data[0] not in to_skip:
                continue
            channel, data = message.data[0], message.data[1:]
            skipped = min(to_skip[channel], len(data))
            to_skip[channel] -= skipped
            if not (data := data[skipped:]):
                continue
            if channel == ERROR:
                raise ConnectionError(data.decode(errors="replace")[:500].strip())
            with contextlib.suppress(ConnectionError):
                # The near end has gone; `_up` sees its end.
                writer.write(data)
                await writer.drain()


async def _up(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await _read(reader):
        await socket.send_bytes(bytes([DATA]) + data)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the next bytes, or nothing at the end. A page that the user leaves breaks its connection, which is an end too."""
    try:
        return await reader.read(CHUNK)
    except ConnectionError:
        return b""


async def _either(*works: Awaitable[None]) -> None:
    """Wait for the first of these to end, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)
