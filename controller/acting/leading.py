"""Tell the rendezvous server every two seconds that this controller leads, by which the server knows that it is not cut off.

A standby gives no sign, and neither does a leader that has not renewed its Lease lately: it may be cut off together with the server.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from elastic.runtime.election import Election
from elastic.runtime.fence import in_time

EVERY_S = 2.0
RENEWED_S = 8.0
"""Age of a renewal that still counts. A server that was cut off with us gives up a silent member 10 s after the cut at the earliest."""


async def give_signs(
    lead: Callable[[int], Awaitable[None]], election: Election | None, *, errors: tuple[type[Exception], ...], left: Callable[[], float]
) -> None:
    """Call `lead` with the term every two seconds while this controller leads. Run until cancelled.

    Without an election it always leads. Errors are not logged: the stream of worlds and the outbox log that the server is out of reach. A
    server of release 0.4 answers 404.
    """
    while True:
        with contextlib.suppress(OSError, *errors):
            if election is None:
                await lead(0)
            elif left() > 0 and election.renewed_ago_s() <= RENEWED_S:
                term = election.term
                await in_time(left, lambda: lead(term))  # noqa: B023
        await asyncio.sleep(EVERY_S)
