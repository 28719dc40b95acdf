"""Limit how much members may send: by buckets of messages, joins and bytes, and by a protocol that counts bytes as they arrive.

A member that never ends a message makes the server keep what it sent. So all members of a job together have a limit of unread bytes.

Frames that end no message, such as empty continuations, never reach a reader of messages. The protocol counts them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

MESSAGES_PER_S = 20.0
BURST = 200.0
BYTES_PER_MESSAGE = 4096
"""This many bytes count as one more message."""
VALUES_AT_ONCE, VALUES_PER_S = 8192.0, 100.0
"""Messages that a member may say in addition if they are values of the exchange. A member of 1,024 workers in a large world says 5,000."""
MOST_UNREAD = 16 * 2**20
"""Unread bytes of all members of a job. A message is read a moment after its end, so 8,192 members that join at once have fewer."""
MASKED_HEAD = 6
"""Bytes of the shortest head of a client's frame."""


class Rate:
    """A token bucket, so that one member cannot keep the server busy.

    first_bytes: how many bytes its first message may have beyond the burst. A refused message costs nothing.
    """

    def __init__(
        self, clock: Callable[[], float], *, first_bytes: int = 0, messages_per_s: float = MESSAGES_PER_S, burst: float = BURST
    ) -> None:
        self._clock = clock
        self._at = clock()
        self._messages_per_s, self._burst = messages_per_s, burst
        self._left = burst + first_bytes / BYTES_PER_MESSAGE
        self._values = Use(self._at)

    def give_back(self, length: int) -> None:
        """Count a message of so many bytes as a value of the exchange: a member with many workers has many of them at once."""
        if self._values.drained(now=self._clock(), per_s=VALUES_PER_S) < VALUES_AT_ONCE:
            amount = 1.0 + length / BYTES_PER_MESSAGE
            self._values.add(amount)
            self._left += amount

    def allows_message(self) -> bool:
        return self._takes(1.0)

    def allows_bytes(self, length: int) -> bool:
        return self._takes(length / BYTES_PER_MESSAGE)

    def _takes(self, amount: float) -> bool:
        now = self._clock()
        self._left = min(max(self._burst, self._left), self._left + (now - self._at) * self._messages_per_s)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


class Use:
    """A peer's recent use: it grows with each use and drains with time. The caller compares it with the limit of the moment."""

    __slots__ = ("_at", "_used")

    def __init__(self, now: float) -> None:
        self._at, self._used = now, 0.0

    def drained(self, *, now: float, per_s: float) -> float:
        """Return the use that is left after draining `per_s` each second until now."""
        self._used = max(0.0, self._used - max(0.0, now - self._at) * per_s)
        self._at = now
        return self._used

    def add(self, amount: float) -> None:
        """Count this much more."""
        self._used += amount


class Unread:
    """The bytes of one connection that nobody has read: of messages that have not ended, or that wait for their reader."""

    def __init__(self, of_jobs: Counter[str], uid: str) -> None:
        self._of_jobs, self._uid = of_jobs, uid
        self._bytes = 0

    def arrived(self, length: int) -> bool:
        """Count bytes that arrived. Return False if the job has more unread ones than it may have."""
        self._bytes += length
        self._of_jobs[self._uid] += length
        return self._of_jobs[self._uid] <= MOST_UNREAD

    def read(self, message: str | bytes) -> None:
        """Subtract a message that was read, with the head of its frame."""
        length = len(message.encode()) if isinstance(message, str) else len(message)
        self._drop(length + MASKED_HEAD + (0 if length < 126 else 2 if length < 2**16 else 8))

    def lost(self) -> None:
        """Subtract what is left, because the connection is gone."""
        self._drop(self._bytes)

    def _drop(self, length: int) -> None:
        length = min(length, self._bytes)
        self._bytes -= length
        self._of_jobs[self._uid] -= length
        if not self._of_jobs[self._uid]:
            del self._of_jobs[self._uid]


class Metered(asyncio.Protocol):
    """Sits between a connection and its protocol. It cuts the connection off if more bytes come than the rate or the job's room allow."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, rate: Rate, unread: Unread) -> None:
        self._protocol = protocol
        self._transport = transport
        self._rate = rate
        self._unread = unread

    def data_received(self, data: bytes) -> None:
        if self._unread.arrived(len(data)) and self._rate.allows_bytes(len(data)):
            self._protocol.data_received(data)
        else:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._unread.lost()
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def meter(transport: asyncio.Transport | None, rate: Rate, unread: Unread) -> None:
    """Count what arrives on this connection from now on."""
    protocol = transport.get_protocol() if transport is not None else None
    if transport is not None and isinstance(protocol, asyncio.Protocol):
        transport.set_protocol(Metered(protocol, transport, rate, unread))
