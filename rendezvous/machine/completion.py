"""Whether the work of a job is done: a member has ended with 0 and nobody else of its world works, or could begin again.

Once a member has finished, its world is left alone: who still works there may take minutes to save a model. Who was interrupted in it
begins again, where enough for a world are there. All others, above all those that were lost and come back, would find nothing to do.
"""

from collections.abc import Iterator
from dataclasses import replace

from rendezvous.machine.choose import absent, target, unknown_ranks
from rendezvous.machine.state import Job, Member, Phase


def has_finished(job: Job) -> bool:
    """Whether a member of the current world is done. What a server that has just started has not seen itself, the controller says."""
    world = job.world
    if job.finished:
        return True
    reported = job.expectation.finished if job.expectation is not None else ()
    if world is None:
        return bool(reported)
    return unknown_ranks(world) > 0 and any(name not in world.ranks for name in reported)


def works_on(job: Job) -> bool:
    """Whether workers of the current world may still run, leaving aside those of a member that has failed."""
    failed = {failure.member for failure in job.failures}
    if any(member.phase is not Phase.READY and member.name not in failed for member in _unfinished(job)):
        return True
    return not job.is_settled and (job.world is None or unknown_ranks(job.world) > 0)


def _is_done(job: Job) -> bool:
    """Whether no further world follows because the work is done. Who has been let go is on the way out: nobody begins again with it."""
    if not has_finished(job) or works_on(job):
        return False
    return job.is_done or not any(_unfinished(job)) or not (target(job) or _may_be_enough(job))


def with_completion(job: Job) -> Job:
    """The job, knowing since when its work is done, and whether anybody is still waited for."""
    done_at = (job.now if job.done_at is None else job.done_at) if _is_done(job) else None
    is_complete = done_at is not None and not _is_awaited(job, since=done_at)
    if (done_at, is_complete) == (job.done_at, job.is_complete):
        return job
    return replace(job, done_at=done_at, is_complete=is_complete)


def _unfinished(job: Job) -> Iterator[Member]:
    """Members of the current world that have not finished, in the same incarnation as they entered it."""
    world = job.world
    for name in world.ranks if world is not None else ():
        member = job.members.get(name)
        if world is not None and member is not None and member.phase is not Phase.FINISHED and member.generation == world.generation:
            yield member


def _may_be_enough(job: Job) -> bool:
    """Whether expected members may still come with whom those who were interrupted could begin again."""
    if not absent(job):
        return False
    notified_at = job.round.notified_at if job.round is not None else None
    return notified_at is None or job.now < notified_at + job.limits.late_s


def _is_awaited(job: Job, *, since: float) -> bool:
    """Whether others are still to end by themselves: who waits, or will come, and is let go; and who may work behind a cut."""
    limits, away = job.limits, absent(job)
    is_let_go = any(member.phase is not Phase.FINISHED for member in job.members.values())
    if (is_let_go or away) and job.now < since + limits.late_s:
        return True
    return any(loss.may_work and loss.member in away for loss in job.losses) and job.now < since + limits.cut_off_s
