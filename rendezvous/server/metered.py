"""How much a member may say: a bucket of messages and bytes, and a protocol that counts bytes as they arrive.

Frames that end no message, such as empty continuations, never reach a reader of messages; they are counted here.
"""

import asyncio
from collections.abc import Callable

MESSAGES_PER_S = 20.0
BURST = 200.0
BYTES_PER_MESSAGE = 4096
"""So many bytes count as one more message."""


class Rate:
    """A token bucket, so that one member cannot keep the server busy.

    `first_bytes`: what its first message may have beyond the burst. What is refused costs nothing.
    """

    def __init__(
        self, clock: Callable[[], float], *, first_bytes: int = 0, messages_per_s: float = MESSAGES_PER_S, burst: float = BURST
    ) -> None:
        self._clock = clock
        self._at = clock()
        self._messages_per_s, self._burst = messages_per_s, burst
        self._left = burst + first_bytes / BYTES_PER_MESSAGE

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


class Metered(asyncio.Protocol):
    """Stands between a connection and its protocol. It cuts the connection off once more bytes have come than the rate allows."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, rate: Rate) -> None:
        self._protocol = protocol
        self._transport = transport
        self._rate = rate

    def data_received(self, data: bytes) -> None:
        if self._rate.allows_bytes(len(data)):
            self._protocol.data_received(data)
        else:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def meter(transport: asyncio.Transport | None, rate: Rate) -> None:
    """Counts what arrives on this connection from now on."""
    protocol = transport.get_protocol() if transport is not None else None
    if transport is not None and isinstance(protocol, asyncio.Protocol):
        transport.set_protocol(Metered(protocol, transport, rate))
