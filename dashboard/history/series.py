"""How a job went over time, in bounded memory: rows become rarer with age.

Three rings hold a row each 5 s for 20 minutes, each minute for 4 hours, and each 20 minutes for 80 hours; what falls out of one goes into
the next. A row's values hold from its time until the next row's, in the older rings as the mean of this time. A change of the size gets a
row at once. Pure.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

NOTHING = math.nan
ROWS = 240


class Row(NamedTuple):
    """Not known: NaN."""

    at: float
    """Seconds since 1970."""
    world: float
    wanted: float
    generation: float
    step: float
    rate: float
    loss: float
    least: float
    """The fewest workers in this time, if the row stands for several rows."""


WIDTH = len(Row._fields)
ROW_BYTES = WIDTH * 8
GAPS_S = (5.0, 60.0, 1200.0)
MOST_BYTES = len(GAPS_S) * ROWS * ROW_BYTES
"""Bytes of one job: 46 KB."""


class Series:
    def __init__(self) -> None:
        self._rings = [array("d") for _ in GAPS_S]

    def __len__(self) -> int:
        return sum(len(ring) for ring in self._rings) // WIDTH

    def add(self, row: Row) -> None:
        """Add the newest row. It takes the place of the last row if both are in the same few seconds and have the same size."""
        if (last := self.last()) is not None and row.at < last.at:
            row = row._replace(at=last.at)  # a clock was set back
        ring = self._rings[0]
        count = len(ring) // WIDTH
        if count and _stays(_row(ring, count - 1), _row(ring, count - 2) if count > 1 else None, row):
            ring[(count - 1) * WIDTH :] = array("d", row)
            return
        ring.extend(row)
        self._let_fall(0)

    def last(self) -> Row | None:
        ring = self._rings[0]
        return _row(ring, len(ring) // WIDTH - 1) if ring else None

    def rows(self, *, after: float = -math.inf) -> Iterator[Row]:
        """Those later than a time, the oldest first."""
        for ring in reversed(self._rings):
            for at in range(0, len(ring), WIDTH):
                if ring[at] > after:
                    yield Row(*ring[at : at + WIDTH])

    def stored(self) -> list[bytes]:
        return [ring.tobytes() for ring in self._rings]

    @classmethod
    def of(cls, stored: list[bytes]) -> Series:
        """Return the series that `stored` gave. Raise ValueError for anything else."""
        if len(stored) != len(GAPS_S) or any(len(part) % ROW_BYTES or len(part) > ROWS * ROW_BYTES for part in stored):
            raise ValueError("these are not the rings of a series")
        series = cls()
        for ring, part in zip(series._rings, stored, strict=True):
            ring.frombytes(part)
        return series

    def _let_fall(self, level: int) -> None:
        """Move the oldest row of a full ring into the next ring, or into the last row there."""
        ring = self._rings[level]
        if len(ring) < ROWS * WIDTH:
            return
        oldest, until = _row(ring, 0), ring[WIDTH]
        del ring[:WIDTH]
        if level + 1 == len(self._rings):
            return
        rarer = self._rings[level + 1]
        if rarer and oldest.at - (last := _row(rarer, len(rarer) // WIDTH - 1)).at < GAPS_S[level + 1]:
            rarer[-WIDTH:] = array("d", _united(last, oldest, until))
            return
        rarer.extend(oldest)
        self._let_fall(level + 1)


def _row(ring: array[float], index: int) -> Row:
    return Row(*ring[index * WIDTH : (index + 1) * WIDTH])


def _stays(last: Row, before: Row | None, newest: Row) -> bool:
    """Return whether the newest row takes the last row's place. The first row of a size stays: it says when the size changed."""
    if not _same_size(last, newest):
        return False
    return newest.at == last.at or (before is not None and _same_size(before, last) and newest.at - before.at < GAPS_S[0])


def _same_size(one: Row, other: Row) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(one[1:4], other[1:4], strict=True))


def _united(first: Row, second: Row, until: float) -> Row:
    """Return one row for the time of two. The first row ends when the second begins, and the second ends at `until`."""
    before_s, after_s = second.at - first.at, until - second.at
    known = Row(*(b if a != a else a for a, b in zip(first, second, strict=True)))
    return known._replace(
        world=_mean(first.world, before_s, second.world, after_s),
        rate=_mean(first.rate, before_s, second.rate, after_s),
        least=_least(first.least, second.least),
    )


def _mean(one: float, one_s: float, other: float, other_s: float) -> float:
    if one != one or other != other:
        return other if one != one else one
    both_s = one_s + other_s
    return (one * one_s + other * other_s) / both_s if both_s > 0 else other


def _least(one: float, other: float) -> float:
    return other if one != one else one if other != other else min(one, other)
