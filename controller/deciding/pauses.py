"""Compute how long the next try waits after failed tries (twice as long after each), and whether a stored wait still goes on."""

from datetime import datetime, timedelta

from elastic_training.controller.deciding.moments import after

SKEW = timedelta(seconds=5)
"""Greatest difference between the clocks of two controllers."""


def next_pause_s(before_s: int, *, first_s: int, longest_s: int) -> int:
    """Return the pause after one more failed try; `before_s` was the pause before that try, or 0."""
    return min(max(first_s, 2 * before_s), longest_s)


def start_of(at: datetime, pause_s: float, *, now: datetime) -> datetime:
    """Return when the pause in the status began.

    If that time is still to come, the clock has stepped back, and the pause ends now. Otherwise it would begin again at that time.
    """
    return at if at <= now + SKEW else after(now, -pause_s)


def pause_end(at: datetime, pause_s: float, *, now: datetime) -> datetime | None:
    """Return the end of the pause that began at this time; None once it has ended.

    If the end is further away than the pause is long, the clock has stepped back. Then the pause has ended too, because no job should wait
    until that time comes again.
    """
    end = after(at, pause_s)
    return end if now < end <= after(now, pause_s) + SKEW else None
