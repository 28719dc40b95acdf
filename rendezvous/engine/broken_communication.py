"""Bound the restarts because workers do not reach each other, though no worker was lost or failed.

A network that is away for a minute is nobody's fault, so a few restarts in a row are free, with growing pauses between them. If training
still gets no step further, something about the job or its network policy is wrong, and further restarts count against maxRestarts.
"""

from __future__ import annotations

from . import in_place
from .state.job import JobState
from .values import replace
from .words import Cause

FREE = 5
PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0


def restarts_all(job: JobState) -> bool:
    """Return whether the round that closes now restarts all processes for this reason."""
    round, known = job.membership.round, job.accounting
    if round is None or round.in_place or job.membership.world is None or known.is_world_broken:
        return False
    return bool(known.alarms) or job.in_place.attempts >= in_place.ATTEMPTS - 1


def cause(job: JobState) -> Cause:
    return Cause.DISRUPTION if _in_a_row(job) < FREE else Cause.USER


def counted(job: JobState) -> JobState:
    """Return the job after one more restart of this kind."""
    return replace(job, in_place=replace(job.in_place, breaks=_in_a_row(job) + 1, reached=job.progress.step))


def pause_s(job: JobState) -> float:
    """Return how long the next change waits, so that a network has time to come back. A loss or a failure ends the wait."""
    known = job.accounting
    is_unexplained = bool(known.alarms or job.in_place.trouble) and not known.is_world_broken
    breaks = _in_a_row(job) if is_unexplained else 0
    return min(PAUSE_S * 2 ** min(breaks - 1, 10), LONGEST_PAUSE_S) if breaks else 0.0


def _in_a_row(job: JobState) -> int:
    """Return the number of restarts without a step forward until now."""
    known, step = job.in_place, job.progress.step
    if step is None:
        world = job.membership.world
        has_moved = world is not None and job.now - world.since >= job.limits.progress_s
    else:
        has_moved = known.reached is None or step > known.reached
    return 0 if has_moved else known.breaks
