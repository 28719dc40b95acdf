"""Note how far training has come, as its reports say, and whether it got further since the last restart.

These are only values. `restart_budget`, `rounds` and others decide what follows from them.
"""

from __future__ import annotations

from ..messages.controller import Expectation
from ..values import dataclass, replace

PACES = 15


@dataclass(frozen=True)
class Progress:
    """How far training has come."""

    step: int | None = None
    """the highest step ever reported; None where training reports none"""
    step_at_restart: int | None = None
    """what `step` was when the world broke last: a step beyond it is one forward"""
    fruitless: int = 0
    """restarts in a row without a step forward"""
    step_in_world: int | None = None
    """the highest step reported in the current world"""
    before: int | None = None
    """the highest step of the world before the current one; `step` may be higher if that world began again without a checkpoint"""
    first_in_world: int | None = None
    """the first step reported in the current world"""
    begun_after: int | None = None
    """the step of the state with which the current world began, if its processes lived on: reports are samples, this is exact"""
    paces: tuple[float, ...] = ()
    """seconds a step between the newest reports of a world"""
    gaps: tuple[float, ...] = ()
    """Seconds between the newest reports of a world; a program may report only every hundredth step."""
    moved_at: float = 0.0
    """when `step_in_world` rose last, the world began, or a member finished"""
    done_at: float | None = None
    """since when the work is done"""
    is_complete: bool = False
    """the work is done, and nobody is waited for any more"""


def stepped(known: Progress, step: int, *, now: float) -> Progress:
    """Return the progress after training reported a step in the current world. A step no further than before changes nothing."""
    if known.step_in_world is not None and step <= known.step_in_world:
        return known
    paces, gaps = known.paces, known.gaps
    if known.step_in_world is not None:
        gap = now - known.moved_at
        paces, gaps = (*paces[-PACES + 1 :], gap / (step - known.step_in_world)), (*gaps[-PACES + 1 :], gap)
    is_forward = step > (known.step_at_restart if known.step_at_restart is not None else -1)
    return replace(
        known,
        step=max(step, known.step if known.step is not None else 0),
        step_in_world=step,
        first_in_world=_first(known, step) if known.first_in_world is None else known.first_in_world,
        moved_at=now,
        paces=paces,
        gaps=gaps,
        fruitless=0 if is_forward else known.fruitless,
    )


def in_new_world(known: Progress, *, now: float) -> Progress:
    """Return the progress at the beginning of a new world."""
    return replace(known, step_in_world=None, before=_reached(known), first_in_world=None, begun_after=None, moved_at=now)


def _reached(known: Progress) -> int | None:
    """Return the highest step of the current world; without one, the step after which it began."""
    steps = [step for step in (known.step_in_world, known.begun_after) if step is not None]
    if steps:
        return max(steps)
    return known.before if known.before is not None else known.step


def with_state_of(known: Progress, step: int) -> Progress:
    """Return the progress of a new world whose processes live on, and bring the state of this step.

    Reports are samples, so steps after the last sample looked lost although the state had them.
    """
    return replace(known, before=None if known.before is None else max(known.before, step), begun_after=step)


def _first(known: Progress, reported: int) -> int:
    """Return the first step of the current world, of which a later one may be reported first."""
    return reported if known.begun_after is None else min(reported, known.begun_after + 1)


def from_status(known: Progress, expectation: Expectation) -> Progress:
    """Return the progress of a server that has just started: what the job's status says, or what was reported since, if that is more."""
    recorded = -1 if expectation.step is None else expectation.step
    if known.step is not None and known.step > recorded:
        return replace(known, step_at_restart=expectation.step)
    return replace(known, step=expectation.step, step_at_restart=expectation.step, fruitless=expectation.fruitless)


def after_restart(known: Progress, *, is_limited: bool, world_lasted: bool) -> Progress:
    """Count one more restart, which is in vain unless training gets beyond where it was, if the job limits such restarts.

    A job that never reports cannot say how far it came. For such a job, a world that lasted for a while counts as progress.
    """
    if not is_limited:
        return replace(known, step_at_restart=known.step, fruitless=0)
    has_moved = known.step is None and world_lasted
    return replace(known, step_at_restart=known.step, fruitless=1 if has_moved else known.fruitless + 1)
