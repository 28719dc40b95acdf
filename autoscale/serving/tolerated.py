"""Choose the answer to `desired_workers`, so that a HorizontalPodAutoscaler sets the wanted number.

With `behavior.*.tolerance: 0`, it is the wanted number. An API server before 1.35 drops these fields, and leaves a target alone if its
ratio is within a tenth of 1. A smaller step is rounded to the next allowed size that has an effect, if the size would stay there;
otherwise it waits. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from elastic_training.autoscale.deciding.signals import Bounds

TOLERANCE = 0.1
"""Default tolerance of kube-controller-manager."""


@dataclass(frozen=True, slots=True)
class ToleratedSize:
    workers: int
    words: str = ""
    """Why it is another number than the wanted one."""


def passes(current: int, wanted: int, *, tolerance: float = TOLERANCE) -> bool:
    """Would the autoscaler act? In the arithmetic that it uses."""
    ratio = float(wanted * 1000) / (float(1000) * float(current))
    return not (1.0 - tolerance <= ratio <= 1.0 + tolerance)


def answered(wanted: int, current: int, *, bounds: Bounds, least: int, most: int, is_exact: bool) -> ToleratedSize:
    """Return the size to answer.

    `bounds` are the job's allowed sizes, `least` and `most` the autoscaler's limits. It `is_exact` if the API server has kept a
    tolerance of 0 for both directions.
    """
    if is_exact or current <= 0 or wanted == current or passes(current, wanted):
        return ToleratedSize(wanted)
    lost = f"the autoscaler tolerates a tenth, so it would not go from {current} to {wanted}"
    size = _next(wanted, current, bounds)
    if size is None or not least <= size <= most:
        return ToleratedSize(current, f"{lost}; the job may not have a size from {least} to {most} that it would act on, so it waits")
    # The look ahead ends, because each size that it takes is a better one.
    ahead = partial(answered, bounds=bounds, least=least, most=most, is_exact=False)
    if not _is_better(size, current, wanted) or ahead(wanted, size).workers != size:
        return ToleratedSize(current, f"{lost}; it would go to {size} and not stay there, so it waits")
    return ToleratedSize(size, f"{lost}; it goes to {size}, the next size that the job may have and that it acts on")


def _next(wanted: int, current: int, bounds: Bounds) -> int | None:
    """Return the first allowed size beyond the wanted one on which the autoscaler acts."""
    size: int | None = wanted
    while size is not None and not passes(current, size):
        size = bounds.above(size + 1) if wanted > current else bounds.below(size)
    return size


def _is_better(size: int, other: int, wanted: int) -> bool:
    """Return whether a size is nearer to the wanted number, or equally near and larger.

    Each step leads to a better size, so no two sizes lead to each other.
    """
    return (abs(size - wanted), -size) < (abs(other - wanted), -other)
