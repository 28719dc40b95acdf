"""The answer to a job's own question about its world: generation, phase, size and member names.

One job can hold one answer of at most 64 KiB here, for at most five seconds. So callers that read nothing cost the server next to nothing.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Iterator

import msgspec
from aiohttp import web

from elastic.membership.wire import Wire
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.views import summary

LONGEST = 64 * 1024
"""Bytes of the longest answer."""
TAKEN_WITHIN_S = 5.0
TURN_S = 0.5
LOOK_EVERY_S = 0.02
ROOM_FOR_OTHERS = 512
"""Bytes for the fields other than `members`."""

_encode = msgspec.json.encode


class BriefWorld(Wire, frozen=True, omit_defaults=False):
    """The world of a job in brief."""

    generation: int
    phase: str
    size: int
    members: tuple[str, ...]
    """Names of the members by rank."""
    truncated: bool
    """Whether names are missing because the answer would be too long."""


def brief(job: JobState) -> BriefWorld:
    """Return the job's world in brief, in at most LONGEST bytes."""
    seen = summary(job)
    names = tuple(_fitting(member.name for member in sorted(seen.members, key=lambda member: member.rank)))
    size = seen.standing.size if seen.standing is not None else 0
    return BriefWorld(generation=seen.generation, phase=seen.phase, size=size, members=names, truncated=len(names) < len(seen.members))


def _fitting(names: Iterator[str]) -> Iterator[str]:
    left = LONGEST - ROOM_FOR_OTHERS
    for name in names:
        left -= len(name) + 3  # names are ASCII without quotes: two quotes and a comma
        if left < 0:
            return
        yield name


class BriefWorlds:
    """Answers jobs' questions, one at a time for each job."""

    def __init__(self) -> None:
        self._taken: dict[str, asyncio.Event] = {}
        """Jobs that are being answered. The event is set once the answer has been taken."""
        self._waiting: set[str] = set()

    async def has_turn(self, uid: str) -> bool:
        """Return whether this caller may be answered now.

        One caller of a job waits a moment for the answer before: the kernel tells late that a peer has taken its answer.
        """
        taken = self._taken.get(uid)
        if taken is None or uid in self._waiting:
            return taken is None
        self._waiting.add(uid)
        try:
            async with asyncio.timeout(TURN_S):
                await taken.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(uid)
        return uid not in self._taken

    async def answer(self, request: web.Request, job: JobState) -> web.StreamResponse:
        """Send the answer, and return once the peer has taken it. Abort the connection of a peer that does not."""
        body = _encode(brief(job))
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        transport = request.transport
        self._taken[job.uid] = taken = asyncio.Event()
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await response.prepare(request)
                await response.write(body)
                await response.write_eof()
                while transport is not None and is_unsent(transport):  # noqa: ASYNC110 - the kernel tells nobody
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            if transport is not None:
                _abort(transport)
        finally:
            del self._taken[job.uid]
            taken.set()
        return response


def is_unsent(transport: asyncio.Transport) -> bool:
    """Return whether bytes wait in this process or in its kernel until the peer takes them."""
    connection = _socket_of(transport)
    if connection is None or transport.is_closing():
        return False
    try:
        return transport.get_write_buffer_size() > 0 or any(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    except OSError:
        return False


def _abort(transport: asyncio.Transport) -> None:
    """Close the connection, and let the kernel drop what the peer has not read. Otherwise the kernel would keep the bytes for minutes."""
    connection = _socket_of(transport)
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _socket_of(transport: asyncio.Transport) -> socket.socket | None:
    found: socket.socket | None = transport.get_extra_info("socket")
    return found
