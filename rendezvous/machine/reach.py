"""Whether members are silent or the server itself is cut off: seen from here both look alike.

While half of a job or more have missed a beat, the server also needs a sign of life from the controller. The controller holds its Lease, so
it reached the API server within the last ten seconds. Without a sign the server doubts that it is reached, and decides nothing about the
job. The hub knows when the controller last gave a sign; a server that no controller listens to asks for none.

What members said during a doubt is recorded, and waits with everything else for the controller's next message: a worker whose job was
suspended meanwhile has left by plan. The world of the job says that the server waits for it (`asks`).

A doubt has a bound, because half of a job may really be lost while the controller is away: as long as anybody is silent it lasts `DOUBT_S`
at most, however often the controller comes and goes. Only while all members are silent it has no end: nobody waits for a decision.
"""

from dataclasses import replace

from rendezvous.machine.standstill import resumed
from rendezvous.machine.state.job import Job
from rendezvous.machine.state.membership import Member, Phase

SIGN_S = 5.0
"""A controller that is reached gives a sign every two seconds."""
DOUBT_S = 120.0
"""A lost controller is replaced sooner, and so is a server on a lost node."""
LOOK_AGAIN_S = 1.0


def with_doubt(job: Job) -> Job:
    """The job, in doubt or not. After a doubt, members have as long to come back as after a start of the server."""
    silent = _silent(job)
    if job.timings.first_doubt_at is not None and not silent:
        job = replace(job, timings=replace(job.timings, first_doubt_at=None))
    timings = job.timings
    if not _needs_sign(job, silent) or timings.reached_at >= job.now - SIGN_S:
        return _without_doubt(job)
    if timings.doubt_since is not None:
        return job
    first = timings.first_doubt_at if timings.first_doubt_at is not None else job.now
    return replace(job, timings=replace(timings, doubt_since=job.now, first_doubt_at=first))


def awaits_word(job: Job) -> bool:
    """Whether the controller may not have been able to say something, such as that the job was suspended, and is asked for it now."""
    return job.now < job.timings.word_until


def heard(job: Job) -> Job:
    """The job after the controller has spoken."""
    return replace(job, timings=replace(job.timings, word_until=0.0)) if job.timings.word_until else job


def perhaps_cut_off(job: Job) -> frozenset[str]:
    """Members that are silent, perhaps only because the server was cut off.

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


def look_again_at(job: Job) -> float:
    """When a doubt may begin or end."""
    if _silent(job):
        return job.now + LOOK_AGAIN_S
    return min((member.heard_at for member in _at_work(job)), default=job.now) + job.limits.silence_s / 2


def _needs_sign(job: Job, silent: list[Member]) -> bool:
    """Whether so many are silent that it may be the server that is cut off, and that has not been asked for too long."""
    at_work = len(_at_work(job))
    if not silent or 2 * len(silent) < at_work or job.membership.expectation is None:
        return False
    is_overdue = job.timings.first_doubt_at is not None and job.now >= job.timings.first_doubt_at + DOUBT_S
    return len(silent) == at_work or not is_overdue


def _silent(job: Job) -> list[Member]:
    """Members that missed a beat: before their connection broke, if it did."""
    allowed_s = job.limits.silence_s / 2
    return [
        member for member in _at_work(job) if (job.now if member.broken_at is None else member.broken_at) >= member.heard_at + allowed_s
    ]


def _at_work(job: Job) -> list[Member]:
    return [member for member in job.membership.members.values() if member.phase is not Phase.FINISHED]


def _without_doubt(job: Job) -> Job:
    since = job.timings.doubt_since
    if since is None:
        return job
    job = resumed(job, job.now - since)
    until = job.now + job.limits.settle_s
    return replace(job, timings=replace(job.timings, doubt_since=None, patient_until=until, word_until=until))
