"""Whether the work of a job is done: a member has ended with 0 and nobody else of its world works, or could begin again.

Once a member has finished, its world is left alone: a member that still works there may take minutes to save a model. Members that were
interrupted in it begin again, if there are enough of them for a world. All others would find nothing to do, also lost ones that come back.
"""

from __future__ import annotations

from collections.abc import Iterator

from .choose import absent, target
from .state.job import JobState
from .state.membership import Member, MemberPhase, Membership
from .values import replace


def has_finished(group: Membership) -> bool:
    """Return whether a member of the current world is done.

    The controller reports ends of which the server has not heard: the server may have just started, and a member that was cut off may have
    ended meanwhile.
    """
    world = group.world
    if group.finished:
        return True
    reported = group.expectation.finished if group.expectation is not None else ()
    if world is None:
        return bool(reported)
    return any(name not in group.members if name in world.ranks else group.unknown_ranks > 0 for name in reported)


def works_on(job: JobState) -> bool:
    """Return whether workers of the current world may still run. Workers of a member that has failed do not count."""
    failed = {failure.member for failure in job.accounting.failures}
    if any(member.phase is not MemberPhase.READY and member.name not in failed for member in _unfinished(job.membership)):
        return True
    return not job.is_settled and (job.membership.world is None or job.membership.unknown_ranks > 0)


def _is_done(job: JobState) -> bool:
    """Return whether no further world follows because the work is done. No world begins with a member that was let go."""
    group = job.membership
    if not has_finished(group) or works_on(job):
        return False
    return job.is_done or not any(_unfinished(group)) or not (target(job) or _may_be_enough(job))


def with_completion(job: JobState) -> JobState:
    """Return the job with the time since which its work is done, and whether it still waits for a member."""
    known = job.progress
    done_at = (job.now if known.done_at is None else known.done_at) if _is_done(job) else None
    is_complete = done_at is not None and not _is_awaited(job, since=done_at)
    return replace(job, progress=replace(known, done_at=done_at, is_complete=is_complete))


def _unfinished(group: Membership) -> Iterator[Member]:
    """Yield the members of the current world that have not finished and are the same incarnation as when they entered it."""
    world = group.world
    for name in world.ranks if world is not None else ():
        member = group.members.get(name)
        if world is not None and member is not None and member.phase is not MemberPhase.FINISHED and member.generation == world.generation:
            yield member


def _may_be_enough(job: JobState) -> bool:
    """Return whether expected members may still come, with which the interrupted members could begin again."""
    group = job.membership
    if not absent(group):
        return False
    notified_at = group.round.notified_at if group.round is not None else None
    return notified_at is None or job.now < notified_at + job.limits.late_s


def _is_awaited(job: JobState, *, since: float) -> bool:
    """Return whether the end must wait for others: members that wait or will come, and are let go, or members that may work unseen."""
    limits, away = job.limits, absent(job.membership)
    is_let_go = any(member.phase is not MemberPhase.FINISHED for member in job.membership.members.values())
    if (is_let_go or away) and job.now < since + limits.late_s:
        return True
    return any(loss.may_work and loss.member in away for loss in job.accounting.losses) and job.now < since + limits.cut_off_s
