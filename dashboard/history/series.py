"""How a job went over time, in bounded memory: rows become rarer with age. Three rings hold a row each 5 s for 20 minutes, each minute for
4 hours, and each 20 minutes for 80 hours; what falls out of one goes into the next. A change of the size gets a row at once. Pure.
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


WIDTH = len(Row._fields)
ROW_BYTES = WIDTH * 8
GAPS_S = (5.0, 60.0, 1200.0)
MOST_BYTES = len(GAPS_S) * ROWS * ROW_BYTES
"""Of one job: 40 KB."""


class Series:
    def __init__(self) -> None:
        self._rings = [array("d") for _ in GAPS_S]

    def __len__(self) -> int:
        return sum(len(ring) for ring in self._rings) // WIDTH

    def add(self, row: Row) -> None:
        """The newest row. It takes the place of the last one where both are in the same few seconds and the size is the same."""
        if (last := self.last()) is not None and row.at < last.at:
            row = row._replace(at=last.at)  # a clock was set back
        self._add(0, row)

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
        """What `stored` gave; ValueError for anything else."""
        if len(stored) != len(GAPS_S) or any(len(part) % ROW_BYTES or len(part) > ROWS * ROW_BYTES for part in stored):
            raise ValueError("these are not the rings of a series")
        series = cls()
        for ring, part in zip(series._rings, stored, strict=True):
            ring.frombytes(part)
        return series

    def _add(self, level: int, row: Row) -> None:
        ring, gap_s = self._rings[level], GAPS_S[level]
        count = len(ring) // WIDTH
        if count and (row.at == ring[(count - 1) * WIDTH] or (count >= 2 and row.at - ring[(count - 2) * WIDTH] < gap_s)):
            last = _row(ring, count - 1)
            if level > 0:
                row = row._replace(world=_least(last.world, row.world))  # a loss is what one looks for later
            if level > 0 or _same_size(last, row):
                ring[(count - 1) * WIDTH :] = array("d", row)
                return
        ring.extend(row)
        if count < ROWS:
            return
        oldest = _row(ring, 0)
        del ring[:WIDTH]
        if level + 1 < len(self._rings):
            self._add(level + 1, oldest)


def _row(ring: array[float], index: int) -> Row:
    return Row(*ring[index * WIDTH : (index + 1) * WIDTH])


def _same_size(one: Row, other: Row) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(one[1:4], other[1:4], strict=True))


def _least(one: float, other: float) -> float:
    return other if one != one else one if other != other else min(one, other)
