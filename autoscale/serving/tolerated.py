"""Which number `desired_workers` answers, so that a HorizontalPodAutoscaler does what is wanted: the wanted number with
`behavior.*.tolerance: 0`. A server that drops these fields (before 1.35) leaves a target alone whose ratio is within a tenth of 1: a step
that this would swallow is rounded to the next size that passes, where the job can have that and stays there; else it waits. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.1
"""Of kube-controller-manager, where nobody has set another."""


@dataclass(frozen=True, slots=True)
class Answer:
    workers: int
    words: str = ""
    """Why it is another number than the wanted one."""


def passes(current: int, wanted: int, *, tolerance: float = TOLERANCE) -> bool:
    """Would the autoscaler act? In the arithmetic that it uses."""
    ratio = float(wanted * 1000) / (float(1000) * float(current))
    return not (1.0 - tolerance <= ratio <= 1.0 + tolerance)


def answered(wanted: int, current: int, *, least: int, most: int, is_exact: bool) -> Answer:
    """`is_exact`: the autoscaler was read back with a tolerance of 0 for both directions."""
    if is_exact or current <= 0 or wanted == current or passes(current, wanted):
        return Answer(wanted)
    lost = f"the autoscaler tolerates a tenth, so it would not go from {current} to {wanted}"
    size = _next(wanted, current)
    if not least <= size <= most:
        return Answer(current, f"{lost}; the next size that it would act on is outside of {least} to {most}, so it waits")
    if not _is_better(size, current, wanted) or answered(wanted, size, least=least, most=most, is_exact=False).workers != size:
        return Answer(current, f"{lost}; it would go to {size} and not stay there, so it waits")
    return Answer(size, f"{lost}; it goes to {size}, the next size that it acts on")


def _next(wanted: int, current: int) -> int:
    """The first size beyond the wanted one that the autoscaler acts on."""
    step = 1 if wanted > current else -1
    size = wanted
    while size > 0 and not passes(current, size):
        size += step
    return size


def _is_better(size: int, other: int, wanted: int) -> bool:
    """Nearer to what is wanted; of two that are as near, the larger. Each step is one to a better size, so no two lead to each other."""
    return (abs(size - wanted), -size) < (abs(other - wanted), -other)
