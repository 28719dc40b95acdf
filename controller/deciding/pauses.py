"""How long the next try waits after tries that failed, twice as long after each, and whether a wait that stands in the status goes on."""

from datetime import datetime, timedelta

from controller.deciding.moments import after

SKEW = timedelta(seconds=5)
"""By so much the clocks of two controllers may differ."""


def next_pause_s(before_s: int, *, first_s: int, longest_s: int) -> int:
    """The pause after one more failed try; `before_s` was the pause before that try, 0 if there was none."""
    return min(max(first_s, 2 * before_s), longest_s)


def start_of(at: datetime, pause_s: float, *, now: datetime) -> datetime:
    """When the pause began that stands in the status.

    If that is still to come, the clock has stepped back, and the pause ends now: else it would be a pause once more when that time comes.
    """
    return at if at <= now + SKEW else after(now, -pause_s)


def pause_end(at: datetime, pause_s: float, *, now: datetime) -> datetime | None:
    """The end of the pause that began at this time; None once it is over.

    If the end is further away than the pause is long, the clock has stepped back. Then it is over too, because no job should wait until
    that time comes again.
    """
    end = after(at, pause_s)
    return end if now < end <= after(now, pause_s) + SKEW else None
