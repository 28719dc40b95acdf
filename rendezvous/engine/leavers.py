"""Wait for the process of a worker that has left its training loop before the end of the training.

Its program raised an error, or ended. The process may still live for a while, because a logger flushes at exit. Its peers lose their
connections meanwhile, which looks like a broken network. Only the end of the process says how it ended, so the change waits for that end.
"""

from __future__ import annotations

from .exit_status import with_error
from .handlers.leaving_world import failed
from .state.job import JobState
from .state.membership import Member, MemberPhase
from .values import replace
from .words import Cause


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


def _leaver(job: JobState) -> Member | None:
    """Return the member whose worker left its loop first, while its process has yet to end."""
    group = job.membership
    members = (group.members.get(name) for name in (group.world.ranks if group.world is not None else ()))
    found = [member for member in members if member is not None and member.left is not None and member.phase is MemberPhase.RUNNING]
    return min(found, key=lambda member: member.left.at if member.left is not None else job.now, default=None)
