"""Extend the engine's waits for messages by the time for which the server itself stood still, stopped or starved.

It could hear nobody in that time. Deadlines of the controller stay as they are.
"""

from __future__ import annotations

from .state.job import JobState
from .values import replace


def resumed(job: JobState, pause_s: float) -> JobState:
    """Return the job after such a pause. Members whose connections broke have as long to return as after a start of the server."""

    def later(at: float) -> float:
        return min(job.now, at + pause_s)

    group, timings, limits = job.membership, job.timings, job.limits
    members = {
        name: replace(member, heard_at=later(member.heard_at), broken_at=None if member.broken_at is None else later(member.broken_at))
        for name, member in group.members.items()
    }
    waiting = group.round
    return replace(
        job,
        membership=replace(group, members=members, round=replace(waiting, until=waiting.until + pause_s) if waiting is not None else None),
        progress=replace(job.progress, moved_at=later(job.progress.moved_at)),
        in_place=replace(job.in_place, until=job.in_place.until + pause_s),
        timings=replace(
            timings,
            up_since=later(timings.up_since),
            min_reached_at=None if timings.min_reached_at is None else later(timings.min_reached_at),
            patient_until=job.now + min(limits.settle_s, max(limits.return_s, pause_s)),
        ),
    )
