"""Wait for the process of a worker that has left its training loop before the end of the training.

Its program raised an error, or ended. The process may still live for a while, because a logger flushes at exit. Its peers lose their
connections meanwhile, which looks like a broken network. Only the end of the process says how it ended, so the change waits for that end.
"""

from __future__ import annotations

import math

from . import early_ends
from .choose import target
from .exit_status import with_error, with_status
from .handlers.leaving_world import failed
from .state.job import JobState
from .state.membership import Member, MemberPhase
from .values import replace
from .words import Cause

IN_THE_MIDDLE = "its program ended in the middle of the training"


def awaited_until(job: JobState) -> float | None:
    """Return until when the end of a process must be awaited that explains the broken communication; None if none explains it."""
    known, leaver = job.accounting, _leaver(job)
    if leaver is None or leaver.left is None or not known.alarms or known.is_world_broken:
        return None
    return leaver.left.at + job.membership.grace_s


def given_up(job: JobState) -> JobState:
    """Count the worker as failed, because its process has not ended in time. Its agent kills it."""
    leaver = _leaver(job)
    assert leaver is not None
    assert leaver.left is not None
    left = leaver.left
    job = failed(job, leaver, status=None, rank=left.rank, error=left.error)
    words = f"a worker of {leaver.name} left its training loop, and did not end within {job.membership.grace_s:g} s"
    trouble = (with_error(words, rank=left.rank, error=left.error), Cause.USER.value)
    return replace(job, accounting=replace(job.accounting, trouble=trouble))


def with_early_end(job: JobState) -> JobState:
    """Count a worker as failed if it ended with status 0 in the middle of the training, and a peer has noticed.

    If its peers are too few for a world without it, the work stays done, by the completion rule of the job. The peers may wait for minutes
    until their connections fail, so the early end is told now.
    """
    group, known = job.membership, job.accounting
    if not known.alarms or known.is_world_broken or group.world is None or group.expectation is None:
        return job
    members = (group.members.get(name) for name in group.world.ranks)
    ended = [one for one in members if one is not None and one.left is not None and one.phase is MemberPhase.FINISHED]
    if not ended:
        return job
    first = min(ended, key=_left_at)
    rank = first.left.rank if first.left is not None else None
    if not target(job):
        words = with_error(f"{first.name} ended {with_status(0)}", rank=rank, error=IN_THE_MIDDLE)
        return early_ends.told(job, f"{words}, and its peers are too few to go on without it")
    job = replace(job, membership=replace(group, finished=group.finished - {one.name for one in ended}))
    job = failed(job, first, status=0, rank=rank, error=IN_THE_MIDDLE)
    words = with_error(f"a worker of {first.name} ended {with_status(0)}", rank=rank, error=IN_THE_MIDDLE)
    return replace(job, accounting=replace(job.accounting, trouble=(words, Cause.USER.value)))


def _leaver(job: JobState) -> Member | None:
    """Return the member whose worker left its loop first, while its process has yet to end."""
    group = job.membership
    members = (group.members.get(name) for name in (group.world.ranks if group.world is not None else ()))
    found = [member for member in members if member is not None and member.left is not None and member.phase is MemberPhase.RUNNING]
    return min(found, key=_left_at, default=None)


def _left_at(member: Member) -> float:
    return member.left.at if member.left is not None else math.inf
