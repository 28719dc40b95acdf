"""Policy `deadline`: finish by the given time with the fewest worker-hours: the fewest workers that are fast enough."""

from elastic.api.counting import counted
from elastic_training.autoscale.deciding.signals import Bounds, Signals, Wish
from elastic_training.autoscale.deciding.troubles import no_progress, without_samples

FINE = 32
"""Number of workers up to which each number is considered. Above it, steps are one part in this number."""
SPARE = 1.1
"""Factor of the needed speed: rescales, checkpoints and losses take their part."""


def wish(signals: Signals, replicas: int, now: float) -> Wish:
    finish_by, left = signals.policy.finish_by, signals.work.left
    if finish_by is None:
        return Wish(replicas, "finishBy is missing")
    if signals.reports and left is None:
        return Wish(replicas, without_samples())
    if left is None or not signals.curve.is_known:
        found = "its speed is being measured" if signals.reports else no_progress(signals)
        return Wish(replicas, f"how many workers finish in time is not known yet; {found}")
    if left <= 0:
        return Wish(signals.bounds.least, "the work is done")
    left_s = finish_by.timestamp() - now
    needed = left / left_s * SPARE if left_s > 0 else float("inf")
    count = _fewest(signals, needed)
    if count is None:
        best = _nearest(signals, replicas)
        if left_s <= 0:
            return Wish(best, f"finishBy has passed; {counted(best, 'worker', 'is', 'are')} the fastest")
        return Wish(best, f"no allowed number of workers finishes in time; {best} come nearest")
    if count < replicas and signals.curve.rate(count).low < needed and signals.curve.knows(count):
        return Wish(replicas, f"{counted(count, 'worker')} may be too few to finish in time")
    return Wish(count, f"{count} of {counted(signals.bounds.most, 'worker')} {'is' if count == 1 else 'are'} enough to finish in time")


def _fewest(signals: Signals, needed: float) -> int | None:
    return next((size for size in _sizes(signals.bounds) if signals.curve.rate(size).mid >= needed), None)


def _nearest(signals: Signals, replicas: int) -> int:
    """Return the fastest number of workers. A measured size must be faster than the present one for certain, or noise would decide."""
    curve = signals.curve
    best = max(_sizes(signals.bounds), key=lambda size: (curve.rate(size).mid, -size))
    is_known = curve.knows(best) and curve.knows(replicas) and signals.bounds.allows(replicas)
    return replicas if is_known and curve.rate(best).low <= curve.rate(replicas).high else best


def _sizes(bounds: Bounds) -> list[int]:
    """Return the numbers of workers to choose from: all small ones, and some large ones."""
    sizes = [bounds.least]
    while (larger := bounds.above(sizes[-1] + max(1, sizes[-1] // FINE))) is not None:
        sizes.append(larger)
    return sizes if sizes[-1] == bounds.largest(bounds.most) else [*sizes, bounds.largest(bounds.most)]
