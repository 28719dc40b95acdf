"""Keep the measured throughput of a job with each number of workers, and take in new measurements.

A job that comes back to a size is measured there again, because its workers may be on other nodes. Until then the former measurement holds.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from elastic.api.scaling import LEAST_RATE, MOST_CHANGES, MOST_RATE

LEAST_COUNT = 3
"""Measurements of one size, before anything follows from it."""
LONGEST_MEMORY = 32
"""The mean moves at least by one part in this number, so that older measurements fade."""
LEAST_ERROR = 0.01
"""Least relative error of a rate. Repeated measurements always differ by so much."""
SURE = 3.0
"""Standard errors from the mean to a bound."""
OUTLIER = 4.0
"""Standard deviations from which a measurement counts as a checkpoint or a short pause, unless it repeats."""
SHIFTED_AFTER = 4
MOST_SIZES = 8
OLD_S, OLD_CHANGES = 86400.0, 8
"""Seconds, and changes of the number of workers, after which a measurement does not prove any more that a size is slow."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The throughput with one number of workers."""

    size: int
    rate: float
    variance: float = 0.0
    count: int = 1
    odd: int = 0
    """Number of consecutive outliers. Its sign is their side."""
    at: float = 0.0
    """Time of the last measurement."""
    changes: int = 0
    """Number of changes of size since then."""
    again: tuple[float, ...] = ()
    """Measurements since the job came back to this size, until there are enough of them."""

    @property
    def error(self) -> float:
        """Return the error of the mean: never below the differences that have other reasons than chance."""
        chance = math.sqrt(self.variance / min(self.count, LONGEST_MEMORY))
        return max(chance, LEAST_ERROR * self.rate / SURE)

    def age(self, now: float) -> float:
        """Return how much of the measurement has faded, from 0 to 1. One change does not count, since most workers stay where they are."""
        return min(1.0, max(0.0, now - self.at) / OLD_S + max(0, self.changes - 1) / OLD_CHANGES)


Sizes = tuple[Measured, ...]
"""By size, in order."""


def with_rate(known: Sizes, *, size: int, rate: float, now: float) -> Sizes:
    """Return the measurements after one more. A measurement that cannot be true is left out."""
    if not (LEAST_RATE <= rate <= MOST_RATE and size > 0):
        return known
    if any(one.at > now for one in known):  # a clock was set back, or another process's was ahead
        known = tuple(replace(one, at=min(one.at, now)) for one in known)
    last = next((one for one in known if one.again), None) or max(known, key=lambda one: (one.at, -one.changes), default=None)
    is_same = last is not None and last.size == size
    if not is_same:
        known = tuple(replace(one, changes=min(one.changes + 1, MOST_CHANGES), odd=0, again=()) for one in known)
    old = next((one for one in known if one.size == size), None)
    if old is None:
        return _bounded([*known, Measured(size, rate, at=now)], keep=size)
    if old.again or not is_same:
        return _with(known, _measured_again(old, rate, now))
    deviation = math.sqrt(old.variance) + LEAST_ERROR * old.rate
    is_odd = old.count >= 2 * LEAST_COUNT and abs(rate - old.rate) > OUTLIER * deviation
    if not is_odd:
        return _with(known, _mixed(replace(old, odd=0, at=now), rate))
    side = 1 if rate > old.rate else -1
    odd = old.odd + side if old.odd * side > 0 else side
    if abs(odd) < SHIFTED_AFTER:
        return _with(known, replace(old, odd=odd, at=now))
    return _shifted(known, old, rate, now)


def _with(known: Sizes, new: Measured) -> Sizes:
    return tuple(new if one.size == new.size else one for one in known)


def _mixed(old: Measured, rate: float) -> Measured:
    share = max(1.0 / (old.count + 1), 1.0 / LONGEST_MEMORY)
    step = rate - old.rate
    variance = (1 - share) * (old.variance + share * step * step)
    return replace(old, rate=old.rate + share * step, variance=variance, count=min(old.count + 1, 2 * LONGEST_MEMORY))


def _measured_again(old: Measured, rate: float, now: float) -> Measured:
    """Return the new measurement. The former one still tells by how much measurements differ."""
    if old.count < LEAST_COUNT:
        return Measured(old.size, rate, at=now)
    again = (*old.again, rate)
    if len(again) < LEAST_COUNT:
        return replace(old, again=again)
    mean = statistics.fmean(again)
    variance = max(statistics.pvariance(again), old.variance * (mean / old.rate) ** 2)
    return Measured(old.size, mean, variance, len(again), at=now)


def _shifted(known: Sizes, old: Measured, rate: float, now: float) -> Sizes:
    """Return the sizes after a change of the work itself, such as longer samples: other sizes move with it, and count for less."""
    ratio = rate / old.rate
    moved = (
        replace(one, rate=one.rate * ratio, variance=one.variance * ratio * ratio, count=min(one.count, LEAST_COUNT), odd=0)
        for one in known
    )
    found = (Measured(one.size, rate, one.variance, at=now) if one.size == old.size else one for one in moved)
    return tuple(one for one in found if LEAST_RATE <= one.rate <= MOST_RATE)


def _bounded(known: Iterable[Measured], *, keep: int) -> Sizes:
    """Return the measurements by size. If there are too many, drop the one with the fewest measurements, then the oldest."""
    found = sorted(known, key=lambda one: one.size)
    while len(found) > MOST_SIZES:
        found.remove(min((one for one in found if one.size != keep), key=lambda one: (one.count, one.at)))
    return tuple(found)
