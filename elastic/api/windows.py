"""Compute the minutes of the week in which the windows of a schedule hold, as the bits of a number from Monday 00:00 UTC on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elastic.api.scaling import Day, Window

DAY = 24 * 60
WEEK = 7 * DAY


def without_effect(windows: Sequence[Window]) -> Iterator[int]:
    """Yield the places of windows that never decide, because earlier windows hold at all their times."""
    taken = 0
    for place, window in enumerate(windows):
        held = minutes(window)
        if not held & ~taken:
            yield place
        taken |= held


def minutes(window: Window) -> int:
    start, end = _minute(window.start), _minute(window.end)
    once = (1 << ((end - start) % DAY or DAY)) - 1
    held = 0
    for day, name in enumerate(Day):
        if not window.days or name in window.days:
            held |= once << (day * DAY + start)
    return (held | held >> WEEK) & ((1 << WEEK) - 1)


def _minute(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])
