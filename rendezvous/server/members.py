"""One member's connection: a WebSocket for its messages and the server's views. The open connection shows that the member is alive.

It checks the size, rate and format of messages and passes them to the hub. It decides nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from elastic.membership.limits import MEMBER_MESSAGE
from elastic.membership.wire import Decoder, Failed, FromMember, Join, Keys, Refused, View, encode
from elastic_training.rendezvous.server.exchange import Exchange
from elastic_training.rendezvous.server.failure_log import FailureLog
from elastic_training.rendezvous.server.hub import Full, Hub
from elastic_training.rendezvous.server.metered import Rate, Unread, meter

FIRST_MESSAGE_S = 10.0
GOOD_BYE_S = 2.0
LONGEST_REASON = 123
"""Bytes of a reason in a WebSocket's last frame."""

_decoder = Decoder[FromMember](FromMember)


class Connection:
    """A member's WebSocket as the hub's Link.

    Only the newest view is sent; older unsent ones are dropped. Values of the exchange follow the view.
    """

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        self._socket = socket
        self._transport = transport
        self._next: View | None = None
        self._has_view = False
        """Whether a view was sent. A member knows no round before, and would drop the values of one."""
        self._exchange: Exchange | None = None
        self._given = (0, 0)
        """The round of the exchange of which this member got values last, and how many."""
        self._sending: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        """Kept until the connection is gone: the loop itself keeps no task alive."""

    def send(self, view: View) -> None:
        self._next = view
        self._send_soon()

    def give(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._send_soon()

    def _send_soon(self) -> None:
        if self._sending is None and self._ending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_newest())

    def end(self, reason: str) -> None:
        self._end_with(WSCloseCode.POLICY_VIOLATION, Refused(refused=reason))

    def close(self) -> None:
        self._end_with(WSCloseCode.TRY_AGAIN_LATER)

    def _end_with(self, code: WSCloseCode, last: Refused | None = None) -> None:
        self._next = None
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(code, last))

    async def _send_newest(self) -> None:
        try:
            while (message := self._take()) is not None:
                await self._socket.send_str(encode(message).decode())
        except (ConnectionError, RuntimeError):
            pass  # the reader notices the broken connection
        finally:
            self._sending = None

    def _take(self) -> View | Keys | None:
        """Return the next message to send; None if nothing is left to send."""
        view, self._next = self._next, None
        self._has_view = self._has_view or view is not None
        if view is not None or self._exchange is None or not self._has_view:
            return view
        number, keys = self._exchange.after(*self._given)
        self._given = (self._exchange.round, number)
        return keys

    async def _end(self, code: WSCloseCode, last: Refused | None) -> None:
        """Close with a code, then abort: a peer that does not read must not keep the connection open."""
        try:
            with contextlib.suppress(ConnectionError, RuntimeError, TimeoutError):
                async with asyncio.timeout(2 * GOOD_BYE_S):
                    if last is not None:
                        await self._socket.send_str(encode(last).decode())
                    await self._socket.close(code=code)
        finally:
            if self._transport is not None:
                self._transport.abort()


async def serve_member(
    request: web.Request,
    hub: Hub,
    *,
    uid: str,
    name: str,
    clock: Callable[[], float],
    open_sockets: set[web.WebSocketResponse],
    may_join: bool,
    unread: Unread,
    failures: FailureLog,
) -> web.WebSocketResponse:
    """Serve one member's connection until it ends. may_join: whether the job has joins left."""
    # Pings come here, to be counted: aiohttp answers any number of them in one turn of the loop.
    socket = web.WebSocketResponse(max_msg_size=MEMBER_MESSAGE, compress=False, timeout=GOOD_BYE_S, autoping=False)
    await socket.prepare(request)
    if not may_join:
        # Not with an HTTP status: an agent that is denied for long ends. Its introduction is not read, because it may be long.
        meter(request.transport, Rate(clock, burst=1.0), unread)
        await _close(socket, WSCloseCode.TRY_AGAIN_LATER, "too many joins of this job's members; try again in a moment")
        return socket
    rate = Rate(clock, first_bytes=MEMBER_MESSAGE)
    meter(request.transport, rate, unread)
    try:
        join = await _first(socket, unread)
    except (ValueError, TimeoutError, RecursionError) as error:
        await _close(socket, WSCloseCode.UNSUPPORTED_DATA, str(error))
        return socket
    connection = Connection(socket, request.transport)
    try:
        hub.attach(uid, name=name, link=connection, message=join)
    except Full as error:
        await _close(socket, WSCloseCode.TRY_AGAIN_LATER, str(error))
        return socket
    open_sockets.add(socket)
    try:
        await _listen(socket, hub, uid=uid, name=name, incarnation=join.incarnation, rate=rate, unread=unread, failures=failures)
    finally:
        open_sockets.discard(socket)
        hub.detach(uid, name=name, incarnation=join.incarnation, link=connection)
    return socket


async def _first(socket: web.WebSocketResponse, unread: Unread) -> Join:
    """Return the first message, which must be a Join."""
    frame = await asyncio.wait_for(socket.receive(), FIRST_MESSAGE_S)
    if frame.type is not WSMsgType.TEXT:
        raise ValueError("the first message must be a join")
    unread.read(frame.data)
    message = _decoder.decode(frame.data)
    if not isinstance(message, Join):
        raise ValueError("the first message must be a join")
    return message


async def _listen(
    socket: web.WebSocketResponse, hub: Hub, *, uid: str, name: str, incarnation: str, rate: Rate, unread: Unread, failures: FailureLog
) -> None:
    async for frame in socket:
        if isinstance(frame.data, str | bytes):
            unread.read(frame.data)
        if not rate.allows_message():
            await _close(socket, WSCloseCode.POLICY_VIOLATION, "too many messages")
            return
        if frame.type is WSMsgType.PING:
            await socket.pong(frame.data)
        if frame.type is not WSMsgType.TEXT:
            continue
        try:
            message = _decoder.decode(frame.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            await _close(socket, WSCloseCode.UNSUPPORTED_DATA, str(error))
            return
        if isinstance(message, Failed):
            failures.add(uid, name, message)
        if hub.said(uid, name=name, incarnation=incarnation, message=message):
            rate.give_back(len(frame.data))


async def _close(socket: web.WebSocketResponse, code: WSCloseCode, reason: str) -> None:
    """Close a connection with a reason. A longer one is cut between two characters, because its frame would be invalid."""
    await socket.close(code=code, message=reason.encode()[:LONGEST_REASON].decode(errors="ignore").encode())
