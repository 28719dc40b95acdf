"""Send no request once the Lease may be another's: a process that was stopped and wakes up later must not act on old knowledge.

Each request gets only the remaining time, including tries and pauses.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from elastic.kube.errors import KubeError
from elastic.kube.resources import Object
from elastic.runtime.writers import PassingWriter, Writer

T = TypeVar("T")
LAPSED = "LeaseLapsed"
Left = Callable[[], float]
"""Seconds for which the Lease is ours for certain."""


class Lapsed(ConnectionError):
    """The Lease may be another's by now."""


def is_lapse(error: BaseException) -> bool:
    """Return whether an error says only that the Lease may be another's. The election logs that once; no other code needs to."""
    return isinstance(error, Lapsed) or (isinstance(error, KubeError) and error.reason == LAPSED)


class FencedWriter(PassingWriter):
    """A writer that fails as an API server out of reach does, once the Lease has lapsed."""

    def __init__(self, writer: Writer, left: Left) -> None:
        super().__init__(writer)
        self._left = left

    async def _change(self, send: Callable[[], Awaitable[Object]]) -> Object:
        """Send a request if the Lease is ours, and give it up when the Lease lapses."""
        try:
            return await in_time(self._left, send)
        except Lapsed as error:
            raise KubeError(code=0, reason=LAPSED, message=str(error)) from None


async def in_time(left: Left, send: Callable[[], Awaitable[T]]) -> T:
    """Send a request and return its answer. Raises Lapsed if the Lease lapses first."""
    left_s = left()
    if left_s <= 0:
        raise Lapsed("the request was not sent: another process may hold the lease")
    limit = asyncio.timeout(left_s)
    try:
        async with limit:
            return await send()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Lapsed("no answer before the lease could pass to another process") from None
