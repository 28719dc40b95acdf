"""The webhook's connections. Callers need no credentials, so connections are limited in total and by address.
A new connection without room closes the one that has waited longest for its request. So a new caller is always served, and the process
that holds the Lease spends little on all of them together.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)

MOST = 128
MOST_OF_ONE_ADDRESS = 64
BEGIN_S = 3.0
"""For the TLS handshake, and again for the first request."""
IDLE_S = 75.0
LOOK_EVERY_S = 1.0
PACE_S = 0.005
"""Between two connections: a handshake takes a millisecond or two of the controller's time."""
STOP_S = 1.0


@dataclass(eq=False, slots=True)
class Connection:
    address: str
    since: float
    """When it was opened, or its last answer was given."""
    answers: bool = False
    """A request of it is being answered."""
    answered: int = 0
    protocol: RequestHandler | None = None
    task: asyncio.Task[None] | None = None

    def is_overdue(self, now: float) -> bool:
        return not self.answers and now - self.since > (IDLE_S if self.answered else BEGIN_S)


def must_go(there: Iterable[Connection], address: str) -> Connection | None:
    """The one that makes room for another of this address, if there is none."""
    there = list(there)
    held = Counter(one.address for one in there)
    crowded = address if held[address] >= MOST_OF_ONE_ADDRESS else held.most_common(1)[0][0] if len(there) >= MOST else None
    return min((one for one in there if one.address == crowded), key=lambda one: (one.answers, one.since), default=None)


class Listener(web.Server):
    """Serves HTTP over TLS on a listening socket, answering each request by `answer(request, address)`."""

    def __init__(self, answer: Callable[[web.BaseRequest, str], Awaitable[web.Response]]) -> None:
        silent = logging.getLogger(f"{__name__}.http")
        silent.setLevel(logging.CRITICAL)  # requests that are not HTTP are not logged
        super().__init__(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
            lingering_time=0,
            logger=silent,
        )
        self._answer = answer
        self._there: dict[Connection, None] = {}

    async def run(self, opened: socket.socket, tls: ssl.SSLContext) -> None:
        opened.setblocking(False)
        loop = asyncio.get_running_loop()
        looking = asyncio.create_task(self._look())
        try:
            while True:
                try:
                    accepted, address = await loop.sock_accept(opened)
                except OSError as error:
                    log.warning("a connection to the webhook could not be accepted", extra={"error": str(error)})
                    await asyncio.sleep(LOOK_EVERY_S)
                    continue
                self._open(accepted, str(address[0]), tls)
                await asyncio.sleep(PACE_S)
        finally:
            looking.cancel()
            await self._end(opened)

    def _open(self, accepted: socket.socket, address: str, tls: ssl.SSLContext) -> None:
        if (leaves := must_go(self._there, address)) is not None:
            self._drop(leaves)
        connection = Connection(address, asyncio.get_running_loop().time())
        self._there[connection] = None
        connection.task = asyncio.create_task(self._shake_hands(connection, accepted, tls))

    async def _shake_hands(self, connection: Connection, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        def protocol() -> RequestHandler:
            connection.protocol = self()
            return connection.protocol

        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(protocol, accepted, ssl=tls, ssl_handshake_timeout=BEGIN_S, ssl_shutdown_timeout=STOP_S)
        except (OSError, asyncio.CancelledError):  # a failed handshake is an OSError too
            self._there.pop(connection, None)
            accepted.close()
        finally:
            connection.task = None

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if (connection := self._of(handler)) is not None:
            del self._there[connection]

    def _of(self, handler: RequestHandler) -> Connection | None:
        return next((one for one in self._there if one.protocol is handler), None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._of(request.protocol)
        if connection is None:
            raise web.HTTPServiceUnavailable
        connection.answers = True
        try:
            response = await self._answer(request, connection.address)
        finally:
            connection.answers, connection.since = False, asyncio.get_running_loop().time()
        if response.status != web.HTTPOk.status_code:
            response.force_close()  # the rest of what it sends is not read, and who asks badly pays for a new handshake
        connection.answered += 1
        return response

    def _drop(self, connection: Connection) -> None:
        self._there.pop(connection, None)
        if connection.task is not None:
            connection.task.cancel()
        transport = connection.protocol.transport if connection.protocol is not None else None
        if transport is not None:
            transport.abort()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = asyncio.get_running_loop().time()
            for connection in [one for one in self._there if one.is_overdue(now)]:
                self._drop(connection)

    async def _end(self, opened: socket.socket) -> None:
        """What is being answered may end."""
        opened.close()
        for connection in [one for one in self._there if not one.answers]:
            self._drop(connection)
        self.pre_shutdown()
        await self.shutdown(STOP_S)
