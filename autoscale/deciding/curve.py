"""Estimate a job's throughput from measurements with some numbers of workers: bounds, and a model for the sizes between and beyond.

The model is n / X(n) = a + b (n - 1) + c n (n - 1): a worker's time for its share of the work, which grows with contention (b) and with
communication between all pairs (c). Beyond the measured sizes the bounds assume that a further worker never adds more than the one before.
The places of workers on nodes can break that: `hoped_gain` is the gain that a size may bring all the same.

A measurement fades with its age as an upper bound only. A job that trusts an old lower bound goes to that size, which is measured again. A
job that trusts an old upper bound never goes there, and would never find out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_training.autoscale.deciding.measures import LEAST_COUNT, LEAST_ERROR, SURE, Measured, Sizes

DEFAULT_CONTENTION = 0.05
"""b over a, for a job of which nothing is known: ten workers then do the work of seven."""
MOST_EFFICIENCY = 2.0
"""Greatest efficiency of a worker, relative to one at the least size. Reports of more are not believed."""
LEAST_WEIGHT = 0.1
"""Weight of the oldest measurement in the fit, relative to a new one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    low: float
    mid: float
    high: float


class Curve:
    """Estimates for one job at a time.

    `share` is a worker's throughput at the least number of workers, the unit of efficiency and gain. now: None where measures do not fade.
    """

    def __init__(self, known: Sizes, *, least: int, now: float | None) -> None:
        self._known = tuple(one for one in known if one.count >= LEAST_COUNT)
        self._by_size = {one.size: one for one in self._known}
        self._ages = {one.size: one.age(now) if now is not None else 0.0 for one in self._known}
        self._fit = _fit(self._known, [max(LEAST_WEIGHT, 1 - self._ages[one.size]) for one in self._known])
        self.share = self._mid(least) / least if self._known else 0.0
        most = MOST_EFFICIENCY * self.share
        self.is_believed = self.is_known and all(one.rate <= most * one.size for one in self._known if one.size >= least)
        """Something was measured, and it can be true."""

    @property
    def is_known(self) -> bool:
        return bool(self._known)

    @property
    def measured(self) -> Sequence[int]:
        return tuple(self._by_size)

    def knows(self, size: int) -> bool:
        return size in self._by_size

    def measured_at(self, size: int) -> float | None:
        """Return when this size was last measured."""
        found = self._by_size.get(size)
        return found.at if found is not None else None

    def measured_since(self, size: int, at: float) -> bool:
        """Return whether the job was measured at this size since then."""
        found = self._by_size.get(size)
        return found is not None and found.at >= at and not found.again

    def rate(self, size: int) -> Estimate:
        """Estimate the work per second with this number of workers."""
        found = self._by_size.get(size)
        if found is not None:
            return Estimate(max(0.0, found.rate - SURE * found.error), found.rate, self._most(found))
        high = self._high(size)
        low = min(self._low(size), high)  # if each further worker adds more than the one before, the bounds would cross
        return Estimate(low, min(max(self._mid(size), low), high), high)

    def gain(self, before: int, after: int) -> Estimate:
        """Return the addition of each worker between the two sizes, relative to one worker at the least size."""
        if self.share <= 0 or after <= before:
            return Estimate(0.0, 0.0, math.inf)
        one, other, scale = self.rate(before), self.rate(after), (after - before) * self.share
        return Estimate((other.low - one.high) / scale, (other.mid - one.mid) / scale, (other.high - one.low) / scale)

    def marginal(self, size: int) -> float:
        """Return the addition of the last of this many workers, relative to one worker at the least size.

        Workers that only make up for the cost of earlier workers add no more than all of them together.
        """
        starts = {size - 1, *(one.size for one in self._known if size <= 2 * one.size < 2 * size)}
        return min(self.gain(start, size).mid for start in starts)

    def hoped_gain(self, before: int, after: int) -> float:
        """Return the greatest addition of each worker between the two sizes, regardless of the sizes between them.

        A worker then does as much as with the best measured size from half of `after` on. The measurement of that size itself counts for
        less the older it is.
        """
        found, linear = self._by_size.get(after), self._linear(after, before)
        hope = linear if found is None else self._faded(found, linear)
        return (hope - self.rate(before).mid) / ((after - before) * self.share) if self.share > 0 and after > before else 0.0

    def growth(self, before: int, after: int) -> float:
        """Return the part by which the throughput grows; by the default curve if nothing was measured."""
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
        """Return the lower bound of a size: between two measured sizes by interpolation. Beyond the largest nothing is certain."""
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
            return self._most(above[0]) if above else math.inf
        last = below[-1]
        most = self._most(last)
        high = most * size / last.size
        if len(below) > 1:
            before = below[-2]
            slope = max(0.0, (most - before.rate + SURE * before.error) / (last.size - before.size))
            high = min(high, most + slope * (size - last.size))
        if above:
            high = min(high, max(self._most(above[0]), most))
        return high

    def _most(self, found: Measured) -> float:
        """Return the upper bound of a measured size."""
        return self._faded(found, self._linear(found.size, found.size - 1))

    def _faded(self, found: Measured, linear: float) -> float:
        high = found.rate + SURE * found.error
        return high + self._ages[found.size] * max(0.0, linear - high)

    def _linear(self, size: int, last: int) -> float:
        """Return the throughput if a worker does as much as with the best measured size up to `last`, from half of `size` on."""
        near = [one.rate / one.size for one in self._known if size <= 2 * one.size and one.size <= last]
        return size * max(near, default=self._mid(last) / last if last > 0 else 0.0)


def speedup(curve: Curve, size: int, least: int) -> float:
    """Return the addition of the worker number `size`, relative to the job's throughput with the least number of workers.

    No worker counts for more than one of those. A job that reports nothing, or nonsense, takes part with the default curve.
    """
    if size <= least:
        return 1 / least
    if curve.is_believed:
        return min(1.0, max(0.0, curve.marginal(size))) / least
    return (_default(size) - _default(size - 1)) / _default(least)


def _default(size: int) -> float:
    return size / (1 + DEFAULT_CONTENTION * (size - 1)) if size > 0 else 0.0


def _fit(known: Sizes, weights: Sequence[float]) -> tuple[float, float, float]:
    """Least squares for a, b and c, none of them negative, with the default contention as a weak prior."""
    if not known:
        return 1.0, DEFAULT_CONTENTION, 0.0
    if len(known) == 1:
        size, rate = known[0].size, known[0].rate
        a = size / rate / (1 + DEFAULT_CONTENTION * (size - 1))
        return a, a * DEFAULT_CONTENTION, 0.0
    rows = []
    for one, part in zip(known, weights, strict=True):
        y = one.size / one.rate
        weight = part / (y * max(one.error / one.rate, LEAST_ERROR))
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
    """Solve the normal equations of the chosen columns by elimination. The other parameters are 0."""
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
                matrix[row][column] = 0.0  # what rounding leaves of it would change the other pivots
    found = [0.0, 0.0, 0.0]
    for index, name in enumerate(used):
        found[name] = matrix[index][size] / matrix[index][index]
    return (found[0], found[1], found[2]) if all(map(math.isfinite, found)) else None
