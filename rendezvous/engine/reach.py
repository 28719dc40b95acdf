"""Whether members are silent or the server itself is cut off: seen from here both look alike.

While half of a job or more have missed a beat, the server also needs a sign of the controller that holds the Lease. That controller reached
the API server a few seconds ago. Without a sign the server doubts that it is reached, and decides nothing about the job. The hub knows when
the last sign came; a server that no controller listens to needs none.

The server records what members say during a doubt. It decides on that only after the controller's next message: a worker whose job was
suspended meanwhile has left by plan. The world of the job says that the server waits for the message (`asks`).

A doubt has a bound, because half of a job may really be lost while no controller runs. While some members are silent it lasts `DOUBT_S` at
most, however often the controller comes and goes. While all members are silent it has no end: nobody waits for a decision.
"""

from __future__ import annotations

from .standstill import resumed
from .state.job import JobState
from .state.membership import Member, MemberPhase
from .values import replace

SIGN_S = 8.0
"""Age of the last sign from which the server doubts. The leading controller gives one every two seconds."""
DOUBT_S = 120.0
"""A lost controller is replaced sooner, and so is a server on a lost node."""
LOOK_AGAIN_S = 1.0


def with_doubt(job: JobState) -> JobState:
    """Return the job, in doubt or not. After a doubt, members have as long to come back as after a start of the server."""
    silent, is_succeeded = _silent(job), _is_succeeded(job)
    if job.timings.first_doubt_at is not None and not silent and not is_succeeded:
        job = replace(job, timings=replace(job.timings, first_doubt_at=None))
    timings = job.timings
    if not is_succeeded and (not _needs_sign(job, silent) or timings.reached_at >= job.now - SIGN_S):
        return _without_doubt(job)
    if timings.doubt_since is not None:
        return job
    first = timings.first_doubt_at if timings.first_doubt_at is not None else job.now
    return replace(job, timings=replace(timings, doubt_since=job.now, first_doubt_at=first))


def succeeded(job: JobState) -> JobState:
    """Return the job after a member presented a newer world than ours, of another server.

    That server may have taken our place while we were cut off. The leader's next sign shows which of the two is in use.
    """
    first = job.timings.first_doubt_at if job.timings.first_doubt_at is not None else job.now
    return replace(job, timings=replace(job.timings, succeeded_at=job.now, doubt_since=job.now, first_doubt_at=first))


def awaits_word(job: JobState) -> bool:
    """Return whether the controller is asked for its newest message now. It may have had none through, such as a suspension."""
    return job.now < job.timings.word_until


def heard(job: JobState) -> JobState:
    """Return the job after the controller has spoken."""
    return replace(job, timings=replace(job.timings, word_until=0.0)) if job.timings.word_until else job


def perhaps_cut_off(job: JobState) -> frozenset[str]:
    """Return the members that are silent, perhaps only because the server was cut off.

    A later sign of the controller shows that they are lost: each of them should have been heard again by then, and a controller that is cut
    off together with this server has lost its Lease. One member's silence may put that off for the others, but not for ever.
    """
    silent = _silent(job)
    if not _needs_sign(job, silent):
        return frozenset()
    last_heard = max(member.heard_at for member in silent)
    at = min(job.now, job.timings.reached_at)
    silence_s = job.limits.silence_s
    return frozenset(
        member.name for member in silent if at < max(job.timings.patient_until, min(last_heard, member.heard_at + silence_s) + silence_s)
    )


def look_again_at(job: JobState) -> float:
    """Return when a doubt may begin or end."""
    if _silent(job) or job.timings.doubt_since is not None:
        return job.now + LOOK_AGAIN_S
    return min((member.heard_at for member in _at_work(job)), default=job.now) + job.limits.silence_s / 2


def _is_succeeded(job: JobState) -> bool:
    """Return whether another server may have replaced this one, and no sign of the leader has come since."""
    at = job.timings.succeeded_at
    return at is not None and job.timings.reached_at <= at and job.now < at + DOUBT_S


def _needs_sign(job: JobState, silent: list[Member]) -> bool:
    """Return whether half of the members are silent, so that the server may be cut off. After DOUBT_S, only the silence of all counts."""
    at_work = len(_at_work(job))
    if not silent or 2 * len(silent) < at_work or job.membership.expectation is None:
        return False
    first = job.timings.first_doubt_at
    is_overdue = first is not None and job.now >= first + DOUBT_S
    return len(silent) == at_work or not is_overdue


def _silent(job: JobState) -> list[Member]:
    """Return the members that missed a beat: before their connection broke, if it did."""
    allowed_s = job.limits.silence_s / 2
    return [
        member for member in _at_work(job) if (job.now if member.broken_at is None else member.broken_at) >= member.heard_at + allowed_s
    ]


def _at_work(job: JobState) -> list[Member]:
    return [member for member in job.membership.members.values() if member.phase is not MemberPhase.FINISHED]


def _without_doubt(job: JobState) -> JobState:
    since = job.timings.doubt_since
    if since is None:
        return job
    job = resumed(job, job.now - since)
    until = job.now + job.limits.settle_s
    return replace(job, timings=replace(job.timings, doubt_since=None, patient_until=until, word_until=until))
