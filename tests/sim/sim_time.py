"""Run an event loop whose clock jumps to the next timer instead of waiting for it, so that hours of a cluster's life pass in a moment.

Nothing here may wait for the outside: no threads, no sockets. Two runs from the same seed are equal.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
BUSIEST_MOMENT = 20_000
"""Most turns of the loop without a step of the clock."""
BUSY_MOMENT = 1_000
"""Turns after which the simulated clock goes on by a moment."""
JUST_AFTER_S = 1e-6
START = datetime(2026, 1, 1, tzinfo=UTC)


class Stalled(AssertionError):
    """All tasks wait for each other, and no timer is set."""


class _Skipping(selectors.SelectSelector):
    """A selector that moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._at_this_moment = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stalled("nothing is due, and nobody will ever wake anybody")
        self._at_this_moment = 0 if timeout > 0 else self._at_this_moment + 1
        if self._at_this_moment > BUSIEST_MOMENT:
            raise Stalled(f"something turns round and round at {self.now:.1f} s")
        # Move the clock a little further than requested, as on a real machine, so that a woken task finds that its time has come. The
        # loop calls a timer that is due within its resolution. The next reading must be later, or that timer would be set for ever.
        is_turning = self._at_this_moment % BUSY_MOMENT == BUSY_MOMENT - 1
        self.now += timeout + JUST_AFTER_S if timeout > 0 else JUST_AFTER_S * is_turning
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time, and cancel the tasks that are left."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(_ended(left))
        loop.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def now() -> datetime:
    """Return the true time of the simulated world."""
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def stamp(moment: datetime) -> str:
    """Return a time as the API server writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
