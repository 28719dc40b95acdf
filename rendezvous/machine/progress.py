"""How far training has come, as its reports tell: whether a restart brought it forward, and whether it stands still.
What follows from that is decided by those who charge restarts and form worlds.
"""

from dataclasses import replace

from elastic.membership.wire import Expectation
from rendezvous.machine.state import Cause, Job, Progress


def stepped(job: Job, generation: int, step: int) -> Job:
    """Training reported a step: the first one of a world ends its rescale, and one beyond all earlier ones is a step forward."""
    standing, phases, known = job.standing, job.phases, job.progress
    if standing is None or generation != standing.generation:
        return job
    if phases is not None and phases.stepped is None:
        job = replace(job, phases=replace(phases, started=phases.started or job.now, stepped=job.now))
    if known.here is not None and step <= known.here:
        return job
    is_forward = step > (known.bar if known.bar is not None else -1)
    progress = replace(
        known,
        step=max(step, known.step if known.step is not None else 0),
        here=step,
        moved_at=job.now,
        fruitless=0 if is_forward else known.fruitless,
    )
    return replace(job, progress=progress)


def in_new_world(job: Job) -> Progress:
    """What is known when another world begins."""
    return replace(job.progress, here=None, moved_at=job.now)


def learnt(job: Job, expectation: Expectation) -> Progress:
    """What a server that has just started takes over from the job's status; what it has heard of since goes beyond that."""
    known = job.progress
    told = -1 if expectation.step is None else expectation.step
    if known.step is not None and known.step > told:
        return replace(known, bar=expectation.step)
    return replace(known, step=expectation.step, bar=expectation.step, fruitless=expectation.fruitless)


def broken_off(job: Job) -> Progress:
    """One more restart, which is in vain unless training gets beyond where it was; counted where somebody asked for a limit.

    A job that never reports cannot say how far it came: there, a world that lived for a while has got somewhere.
    """
    known = job.progress
    lived = job.now - job.standing.since if job.standing is not None else 0.0
    if job.budget.without_progress is None:
        return replace(known, bar=known.step, fruitless=0)
    has_moved = known.step is None and lived >= job.limits.progress_s
    return replace(known, bar=known.step, fruitless=1 if has_moved else known.fruitless + 1)


def stood_still(job: Job) -> Job:
    """The job, knowing that training hangs where it does: its workers run, it has reported steps before, and none came for too long."""
    limit, standing, known = job.budget.hang_s, job.standing, job.progress
    if limit is None or standing is None or known.step is None or job.hung or job.failures or job.disrupted:
        return job
    began = standing.since if standing.adopted else (job.phases.started if job.phases is not None else None)
    if began is None or job.now < max(began, known.moved_at) + limit:
        return job
    is_forming = job.round is not None and job.round.draining
    if is_forming or job.finished:
        return job
    words = f"training reported no further step for {limit:g} s"
    return replace(job, hung=words, trouble=job.trouble or (words, Cause.HANG.value), sign=max(began, known.moved_at))
