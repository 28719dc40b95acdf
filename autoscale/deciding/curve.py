"""What is known of a job's throughput with each number of workers: measured means, their bounds, and a model for the sizes between and
beyond. It decides nothing.

The model is n / X(n) = a + b (n - 1) + c n (n - 1): a worker's time for its share of the work, which grows with contention (b) and with
communication between all pairs (c). Beyond what was measured the bounds assume that a further worker never brings more than the one before.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from elastic.api.scaling import LEAST_RATE, MOST_RATE

DEFAULT_CONTENTION = 0.05
"""b over a, for a job of which nothing is known: ten workers then do the work of seven."""
LEAST_COUNT = 3
"""Measurements of one size, before anything follows from it."""
LONGEST_MEMORY = 32
"""Older measurements fade: the mean moves at least by one part in so many."""
LEAST_ERROR = 0.01
"""Of the rate: what two measurements of the same thing may differ by for ever."""
SURE = 3.0
"""Standard errors from the mean to a bound."""
OUTLIER = 4.0
"""Standard deviations; a checkpoint or a short pause, unless it goes on."""
SHIFTED_AFTER = 4
MOST_SIZES = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """The throughput with one number of workers. odd: outliers in a row, by their side."""

    size: int
    rate: float
    variance: float = 0.0
    count: int = 1
    odd: int = 0

    @property
    def error(self) -> float:
        """Of the mean: never below what a rate may differ by for other reasons than chance."""
        chance = math.sqrt(self.variance / min(self.count, LONGEST_MEMORY))
        return max(chance, LEAST_ERROR * self.rate / SURE)


@dataclass(frozen=True, slots=True)
class Estimate:
    low: float
    mid: float
    high: float


Sizes = tuple[Measured, ...]
"""By size, in order."""


def with_rate(known: Sizes, *, size: int, rate: float) -> Sizes:
    """What is known after one more measurement; one that cannot be true is left out."""
    if not (LEAST_RATE <= rate <= MOST_RATE and size > 0):
        return known
    old = next((one for one in known if one.size == size), None)
    if old is None:
        return _bounded([*known, Measured(size, rate)], keep=size)
    deviation = math.sqrt(old.variance) + LEAST_ERROR * old.rate
    is_odd = old.count >= 2 * LEAST_COUNT and abs(rate - old.rate) > OUTLIER * deviation
    if not is_odd:
        new = _mixed(replace(old, odd=0), rate)
        return tuple(new if one is old else one for one in known)
    side = 1 if rate > old.rate else -1
    odd = old.odd + side if old.odd * side > 0 else side
    if abs(odd) < SHIFTED_AFTER:
        return tuple(replace(old, odd=odd) if one is old else one for one in known)
    return _shifted(known, old, rate)


def _mixed(old: Measured, rate: float) -> Measured:
    share = max(1.0 / (old.count + 1), 1.0 / LONGEST_MEMORY)
    step = rate - old.rate
    variance = (1 - share) * (old.variance + share * step * step)
    return replace(old, rate=old.rate + share * step, variance=variance, count=min(old.count + 1, 2 * LONGEST_MEMORY))


def _shifted(known: Sizes, old: Measured, rate: float) -> Sizes:
    """The work itself has changed, such as the length of its samples: the other sizes move with it, and count for less."""
    ratio = rate / old.rate
    moved = (
        replace(one, rate=one.rate * ratio, variance=one.variance * ratio * ratio, count=min(one.count, LEAST_COUNT), odd=0)
        for one in known
    )
    found = (Measured(one.size, rate, one.variance) if one.size == old.size else one for one in moved)
    return tuple(one for one in found if LEAST_RATE <= one.rate <= MOST_RATE)


def _bounded(known: Iterable[Measured], *, keep: int) -> Sizes:
    """In order; of too many the one that was measured least goes."""
    found = sorted(known, key=lambda one: one.size)
    while len(found) > MOST_SIZES:
        found.remove(min((one for one in found if one.size != keep), key=lambda one: one.count))
    return tuple(found)


class Curve:
    """Estimates for one job. `share` is a worker's throughput at the least number of workers, the unit of efficiency and gain."""

    def __init__(self, known: Sizes, *, least: int) -> None:
        self._known = tuple(one for one in known if one.count >= LEAST_COUNT)
        self._by_size = {one.size: one for one in self._known}
        self._fit = _fit(self._known)
        self.share = self._mid(least) / least if self._known else 0.0

    @property
    def is_known(self) -> bool:
        return bool(self._known)

    @property
    def measured(self) -> Sequence[int]:
        return tuple(self._by_size)

    def knows(self, size: int) -> bool:
        return size in self._by_size

    def rate(self, size: int) -> Estimate:
        """Work a second with so many workers."""
        found = self._by_size.get(size)
        if found is not None:
            return Estimate(max(0.0, found.rate - SURE * found.error), found.rate, found.rate + SURE * found.error)
        high = self._high(size)
        low = min(self._low(size), high)  # where the measured sizes gain ever more, the bounds would cross
        return Estimate(low, min(max(self._mid(size), low), high), high)

    def gain(self, before: int, after: int) -> Estimate:
        """What each worker between the two sizes adds, as a part of what one worker brings at the least size."""
        if self.share <= 0 or after <= before:
            return Estimate(0.0, 0.0, math.inf)
        one, other, scale = self.rate(before), self.rate(after), (after - before) * self.share
        return Estimate((other.low - one.high) / scale, (other.mid - one.mid) / scale, (other.high - one.low) / scale)

    def growth(self, before: int, after: int) -> float:
        """The part by which the throughput grows; by the default curve where nothing was measured."""
        rate = self.rate(before).mid
        return self.rate(after).mid / rate - 1 if rate > 0 else math.inf

    def efficiency(self, size: int) -> float | None:
        """Throughput of a worker as a part of that at the least size; None while nothing is known."""
        return self._mid(size) / size / self.share if self.share > 0 and size > 0 else None

    def _mid(self, size: int) -> float:
        found = self._by_size.get(size)
        if found is not None:
            return found.rate
        a, b, c = self._fit
        return size / (a + b * (size - 1) + c * size * (size - 1))

    def _low(self, size: int) -> float:
        """Between two measured sizes at least what lies between them; beyond the largest nothing is certain."""
        below = [one for one in self._known if one.size < size]
        above = [one for one in self._known if one.size > size]
        if not above:
            return 0.0
        right = above[0].rate - SURE * above[0].error
        if not below:
            return max(0.0, right * size / above[0].size)
        left = below[-1].rate - SURE * below[-1].error
        part = (size - below[-1].size) / (above[0].size - below[-1].size)
        return max(0.0, left + part * (right - left))

    def _high(self, size: int) -> float:
        below = [one for one in self._known if one.size < size]
        above = [one for one in self._known if one.size > size]
        if not below:
            return above[0].rate + SURE * above[0].error if above else math.inf
        last = below[-1]
        high = (last.rate + SURE * last.error) * size / last.size
        if len(below) > 1:
            before = below[-2]
            slope = max(0.0, (last.rate + SURE * last.error - before.rate + SURE * before.error) / (last.size - before.size))
            high = min(high, last.rate + SURE * last.error + slope * (size - last.size))
        if above:
            high = min(high, max(above[0].rate + SURE * above[0].error, last.rate + SURE * last.error))
        return high


def default_gain(size: int) -> float:
    """What the worker that makes it `size` workers adds, by the default curve: for a job that reports nothing, or nonsense."""
    return _default(size) - _default(size - 1)


def _default(size: int) -> float:
    return size / (1 + DEFAULT_CONTENTION * (size - 1)) if size > 0 else 0.0


def _fit(known: Sizes) -> tuple[float, float, float]:
    """Least squares for a, b and c, none of them negative, with the default contention as a weak prior."""
    if not known:
        return 1.0, DEFAULT_CONTENTION, 0.0
    if len(known) == 1:
        size, rate = known[0].size, known[0].rate
        a = size / rate / (1 + DEFAULT_CONTENTION * (size - 1))
        return a, a * DEFAULT_CONTENTION, 0.0
    rows = []
    for one in known:
        y = one.size / one.rate
        weight = 1.0 / (y * max(one.error / one.rate, LEAST_ERROR))
        rows.append((weight, weight * (one.size - 1), weight * one.size * (one.size - 1), weight * y))
    scale = rows[0][3] / rows[0][0]
    rows.append((-DEFAULT_CONTENTION / scale, 1.0 / scale, 0.0, 0.0))
    choices: list[tuple[float, float, float]] = []
    for used in ((0, 1, 2), (0, 1), (0, 2), (0,)):
        if 2 in used and len(known) < 3:
            continue  # two sizes cannot tell contention from communication, and contention promises more
        found = _solved(rows, used)
        if found is not None and min(found) >= 0 and found[0] > 0:
            choices.append(found)
    if not choices:
        fastest = max(known, key=lambda one: one.rate / one.size)
        return fastest.size / fastest.rate, 0.0, 0.0
    return min(choices, key=lambda found: _residue(rows, found))


def _residue(rows: Sequence[tuple[float, float, float, float]], found: tuple[float, float, float]) -> float:
    return sum((row[0] * found[0] + row[1] * found[1] + row[2] * found[2] - row[3]) ** 2 for row in rows)


def _solved(rows: Sequence[tuple[float, float, float, float]], used: tuple[int, ...]) -> tuple[float, float, float] | None:
    """The normal equations of the chosen columns, by elimination; the other parameters are 0."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in used] + [sum(row[i] * row[3] for row in rows)] for i in used]
    size = len(used)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) < 1e-300:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [left - factor * right for left, right in zip(matrix[row], matrix[column], strict=True)]
    found = [0.0, 0.0, 0.0]
    for index, name in enumerate(used):
        found[name] = matrix[index][size] / matrix[index][index]
    return found[0], found[1], found[2]
