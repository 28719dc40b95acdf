"""Count how often things happened within a window of seconds, in bounded memory.

Things that happened within a small part of the window share one date. The module knows no clock, and no meaning of the things it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .values import dataclass, replace

PARTS = 32
"""Two dates of one thing are at least this part of the window apart, so there are never more than PARTS + 1 of them."""


@dataclass(frozen=True)
class Dated:
    """Something that happened `count` times at about this time, or a little later."""

    what: str
    at: float
    count: int = 1


Dates = tuple[Dated, ...]


def added(dates: Dates, what: str, *, count: int, now: float, window_s: float) -> Dates:
    """Return the dates after this happened now, without dates that have left the window."""
    return _spaced([*_inside(dates, now=now, window_s=window_s), Dated(what, now, count)], gap_s=window_s / PARTS)


def taken_back(dates: Dates, what: str) -> Dates:
    """Return the dates without the newest time that this happened."""
    newest = max((index for index, dated in enumerate(dates) if dated.what == what), default=None)
    if newest is None:
        return dates
    left = replace(dates[newest], count=dates[newest].count - 1)
    return (*dates[:newest], *((left,) if left.count > 0 else ()), *dates[newest + 1 :])


def recounted(dates: Dates, what: str, *, more: int, now: float, window_s: float) -> Dates:
    """Return the dates after this turned out to have happened more often, or, if the number is negative, less often."""
    if more > 0:
        return added(dates, what, count=more, now=now, window_s=window_s)
    for _ in range(-more):
        dates = taken_back(dates, what)
    return dates


def counted(dates: Dates, *, now: float, window_s: float) -> Counter[str]:
    """Return how often each thing happened within the window."""
    counts: Counter[str] = Counter()
    for dated in _inside(dates, now=now, window_s=window_s):
        counts[dated.what] += dated.count
    return counts


def _inside(dates: Dates, *, now: float, window_s: float) -> list[Dated]:
    """Return the dates in the window. A date ahead of a clock that was set back is as good as now."""
    return [replace(dated, at=min(dated.at, now)) for dated in dates if now - dated.at < window_s]


def _spaced(dates: Iterable[Dated], *, gap_s: float) -> Dates:
    """Merge each date that lies too close to an earlier date of the same thing with that date."""
    spaced: list[Dated] = []
    newest: dict[str, int] = {}
    for dated in dates:
        index = newest.get(dated.what)
        if index is not None and dated.at - spaced[index].at < gap_s:
            spaced[index] = replace(spaced[index], count=spaced[index].count + dated.count)
        else:
            newest[dated.what] = len(spaced)
            spaced.append(dated)
    return tuple(spaced)
