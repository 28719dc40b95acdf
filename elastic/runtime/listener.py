"""Accept connections for an aiohttp application, and limit their number and the time for which they may be silent.

A connection costs memory and a file descriptor. A stranger, a connection without a request so far, has a short time for TLS handshake and
first request; a pause between two requests has a limit as well. If all places are taken, one of two policies makes room:

- New connections wait in the kernel's queue and silent ones are closed: strangers after a moment, from the address with most of them (or
  that has all it may have) first, then the longest pauses. A request is never cut while its handler runs; the handler refuses.
- `oldest_goes_at_once`, for servers with short requests that need no credentials: the connection that has waited longest is closed, of
  the address with most of them. If all are being answered, the oldest of these. A new caller never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from elastic.runtime.connection import Connection

log = logging.getLogger(__name__)

MOMENT_S = 2.0
"""Seconds that a stranger has to speak, even if others wait for its place."""
LOOK_EVERY_S = 0.25
GOODBYE_S = 5.0
LAST_LOOK_S, LAST_LOOKS = 0.01, 50
"""Time in which peers may answer the good-bye of a server that ends."""
TELL_EVERY_S = 60.0
KEPT_FREE = 256
"""File descriptors of a process that are not for its clients."""
FEWEST = 16

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    most: int
    """connections at a time"""
    strangers: int
    """Largest number of connections that have sent no request yet."""
    of_one_address: int
    first_request_s: float = 15.0
    """from the connection to the head of its first request"""
    pause_s: float = 75.0
    """from an answer to the head of the next request; also for a peer that takes nothing more of the answer"""
    body_s: float = 60.0
    """from the head of a request to the end of its body"""
    oldest_goes_at_once: bool = False
    pace_s: float = 0.0
    """between two connections, so that handshakes leave the loop time for other work"""

    @classmethod
    def of_this_process(cls, *, most: int, strangers: int) -> Self:
        """Raise the limit of open files, and return the wanted bounds, or smaller ones if the limit is too low."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = most + KEPT_FREE
        if soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        most = min(most, max(soft - KEPT_FREE, soft // 2, FEWEST))
        return cls(most=most, strangers=min(strangers, most // 2), of_one_address=most * 3 // 4)


class Listener:
    """`middleware` goes into the application; `open` accepts for its server until `close`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._by_handler: dict[asyncio.BaseProtocol, Connection] = {}
        self._of_address: dict[str, int] = {}
        self._strangers: dict[str, dict[Connection, None]] = {}
        self._pausing: dict[Connection, None] = {}
        self._receiving: dict[Connection, None] = {}
        self._connections = self._strange = 0
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._told_at = float("-inf")

    def open(self, sockets: Iterable[socket.socket], server: web.Server, *, tls: ssl.SSLContext | None, backlog: int) -> None:
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(backlog)
            self._begin(self._accept(listening, server, tls))
        self._begin(self._look())

    async def close(self) -> None:
        """End accepting and the handshakes under way. `cleanup` closes the served connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cleanup(self, runner: web.BaseRunner) -> None:
        """End the server. It does not wait until peers answer its TLS good-byes: their sockets would stay open."""
        await runner.cleanup()
        for _ in range(LAST_LOOKS):
            if all(one.is_lost for one in self._open):
                break
            await asyncio.sleep(LAST_LOOK_S)
        for connection in list(self._open):
            connection.cut()
        await asyncio.sleep(0)  # in which the cut ones close their sockets

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Around every request, so that it is known which connections are silent."""
        connection = self._by_handler.get(request.protocol)
        if connection is None:
            return await handler(request)
        self._speaks(connection, request)
        try:
            return await handler(request)
        finally:
            self._pauses(connection)

    # --- connections that begin and end ---

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket, server: web.Server, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._bounds.oldest_goes_at_once:
                await self._room()
            try:
                accepted, peer = await _accepted(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no file descriptor or no memory is left
                self._tell(f"no connection can be accepted: {error.strerror}")
                self._give_up_one()
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            address = str(peer[0])
            if not self._admits(address):
                accepted.close()
                continue
            connection = Connection(accepted, address, server(), gone=self._gone, now=loop.time())
            self._add(connection)
            connection.handshake = self._begin(self._shake_hands(connection, accepted, tls))
            connection.handshake.add_done_callback(connection.handshake_ended)
            await asyncio.sleep(self._bounds.pace_s)

    def _admits(self, address: str) -> bool:
        """Return whether there is room for another connection of this address. Room may be made for it."""
        if self._bounds.oldest_goes_at_once:
            oldest = must_go(self._by_handler.values(), address, self._bounds)
            if oldest is not None:
                self._cut(oldest)
            return True
        if self._of_address.get(address, 0) < self._bounds.of_one_address:
            return True
        if (silent := self._longest_silent_of(address)) is not None:
            self._cut(silent)
            return True
        self._tell(f"{address} has {self._bounds.of_one_address} connections, the most that one address may have")
        return False

    def _longest_silent_of(self, address: str) -> Connection | None:
        """Return the longest silent connection of this address. Callers behind a proxy share it, and silent ones must give way."""
        then = asyncio.get_running_loop().time() - MOMENT_S
        silent = [*self._strangers.get(address, ()), *self._pausing]
        return next((one for one in silent if one.address == address and one.since <= then), None)

    async def _shake_hands(self, connection: Connection, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        connection.has_begun = True
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._bounds.first_request_s if tls is not None else None,
                ssl_shutdown_timeout=GOODBYE_S if tls is not None else None,
            )
        except OSError:  # ssl.SSLError, TimeoutError, a broken connection
            connection.is_lost = True
            self._gone(connection)
        except asyncio.CancelledError:
            connection.is_lost = True
            self._gone(connection)
            raise

    def _add(self, connection: Connection) -> None:
        self._connections += 1
        self._strange += 1
        self._of_address[connection.address] = self._of_address.get(connection.address, 0) + 1
        self._strangers.setdefault(connection.address, {})[connection] = None
        self._by_handler[connection.handler] = connection
        self._open.add(connection)

    def _gone(self, connection: Connection) -> None:
        if self._by_handler.pop(connection.handler, None) is None:
            return
        self._no_stranger(connection)
        self._pausing.pop(connection, None)
        self._receiving.pop(connection, None)
        self._connections -= 1
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
        self._freed.set()

    def _no_stranger(self, connection: Connection) -> None:
        strangers = self._strangers.get(connection.address, {})
        if connection in strangers:
            del strangers[connection]
            self._strange -= 1
            self._freed.set()
            if not strangers:
                del self._strangers[connection.address]

    # --- connections that speak and pause ---

    def _speaks(self, connection: Connection, request: web.Request) -> None:
        self._no_stranger(connection)
        self._pausing.pop(connection, None)
        connection.request, connection.since = request, asyncio.get_running_loop().time()
        if not request.content.is_eof():
            self._receiving[connection] = None

    def _pauses(self, connection: Connection) -> None:
        self._receiving.pop(connection, None)
        connection.request, connection.since = None, asyncio.get_running_loop().time()
        if connection.is_over():  # a handler may have given the transport another protocol, so that its end is not seen here
            self._gone(connection)
        elif connection.handler in self._by_handler:
            self._pausing[connection] = None
            self._freed.set()

    async def _look(self) -> None:
        """Close connections that have been silent for too long."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now, bounds = asyncio.get_running_loop().time(), self._bounds
            for strangers in list(self._strangers.values()):
                self._cut_those_before(now - bounds.first_request_s, strangers)
            for connection in [c for c in self._receiving if c.request is None or c.request.content.is_eof()]:
                del self._receiving[connection]
            self._cut_those_before(now - bounds.body_s, self._receiving)
            for connection in _before(now - bounds.pause_s, self._pausing):
                if connection.is_over():
                    self._gone(connection)
                elif connection.takes_more():
                    del self._pausing[connection]
                    connection.since = now
                    self._pausing[connection] = None
            self._cut_those_before(now - bounds.pause_s, self._pausing)

    def _cut_those_before(self, then: float, silent: dict[Connection, None]) -> None:
        for connection in _before(then, silent):
            self._cut(connection)

    def _cut(self, connection: Connection) -> None:
        connection.cut()
        self._gone(connection)

    async def _room(self) -> None:
        """Wait until a place is free. Close a silent connection for it if one may be closed."""
        while self._strange >= self._bounds.strangers or self._connections >= self._bounds.most:
            self._tell(f"the limit of connections is reached ({self._connections}, {self._strange} of them have sent no request)")
            if not self._give_up_one():
                self._freed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), LOOK_EVERY_S)

    def _give_up_one(self) -> bool:
        then = asyncio.get_running_loop().time() - MOMENT_S
        if self._strangers:
            crowd = max(self._strangers, key=lambda address: len(self._strangers[address]))
            stranger = next(iter(self._strangers[crowd]))
            if stranger.since <= then:
                self._cut(stranger)
                return True
        if self._connections >= self._bounds.most and (longest := next(iter(self._pausing), None)) and longest.since <= then:
            self._cut(longest)
            return True
        return False

    def _tell(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._told_at + TELL_EVERY_S:
            self._told_at = now
            log.warning("%s", what)


def must_go(there: Iterable[Connection], address: str, bounds: Bounds) -> Connection | None:
    """Return the connection that makes room for another one of this address, if there is no room."""
    there = list(there)
    held = Counter(one.address for one in there)
    crowded = address if held[address] >= bounds.of_one_address else held.most_common(1)[0][0] if len(there) >= bounds.most else None
    return min((one for one in there if one.address == crowded), key=lambda one: (one.request is not None, one.since), default=None)


async def _accepted(listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
    """Return the next connection. A cancelled `loop.sock_accept` loses its connection, and nothing closes that socket."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, peer = listening.accept()
        except BlockingIOError:
            await _readable(listening, loop)
        else:
            accepted.setblocking(False)
            return accepted, peer


async def _readable(listening: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    readable = asyncio.Event()
    loop.add_reader(listening, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(listening)


def _before(then: float, silent: dict[Connection, None]) -> list[Connection]:
    """Return the connections that have been silent since before that time; the dictionary has this order."""
    found = []
    for connection in silent:
        if connection.since > then:
            break
        found.append(connection)
    return found
