"""How far training has come, as its reports tell: whether a restart brought it forward, and whether it stands still.
What follows from that is decided by those who charge restarts and form worlds.
"""

from dataclasses import replace

from elastic.membership.wire import Expectation
from rendezvous.machine.state import Job, Progress


def stepped(job: Job, generation: int, step: int) -> tuple[Job, bool]:
    """The job after training reported a step, and whether the controller must hear of it: of the first step of a world, which ends its
    rescale, and of the first one after restarts without progress.
    """
    world, phases, known = job.world, job.phases, job.progress
    if world is None or generation != world.generation:
        return job, False
    ends_rescale = phases is not None and phases.stepped is None
    if phases is not None and ends_rescale:
        job = replace(job, phases=replace(phases, started=phases.started or job.now, stepped=job.now))
    if known.step_in_world is not None and step <= known.step_in_world:
        return job, ends_rescale
    is_forward = step > (known.step_at_restart if known.step_at_restart is not None else -1)
    progress = replace(
        known,
        step=max(step, known.step if known.step is not None else 0),
        step_in_world=step,
        moved_at=job.now,
        fruitless=0 if is_forward else known.fruitless,
    )
    is_news = ends_rescale or known.step_in_world is None or progress.fruitless != known.fruitless
    return replace(job, progress=progress), is_news


def in_new_world(job: Job) -> Progress:
    """The progress at the beginning of a new world."""
    return replace(job.progress, step_in_world=None, moved_at=job.now)


def from_status(job: Job, expectation: Expectation) -> Progress:
    """The progress of a server that has just started: what the job's status says, or what has been reported since, if that is more."""
    known = job.progress
    recorded = -1 if expectation.step is None else expectation.step
    if known.step is not None and known.step > recorded:
        return replace(known, step_at_restart=expectation.step)
    return replace(known, step=expectation.step, step_at_restart=expectation.step, fruitless=expectation.fruitless)


def after_restart(job: Job) -> Progress:
    """One more restart, which is in vain unless training gets beyond where it was; counted where somebody asked for a limit.

    A job that never reports cannot say how far it came: there, a world that lived for a while has got somewhere.
    """
    known = job.progress
    lived = job.now - job.world.since if job.world is not None else 0.0
    if job.budget.without_progress is None:
        return replace(known, step_at_restart=known.step, fruitless=0)
    has_moved = known.step is None and lived >= job.limits.progress_s
    return replace(known, step_at_restart=known.step, fruitless=1 if has_moved else known.fruitless + 1)


def hanging_since(job: Job) -> float | None:
    """When training began to hang: its workers run, it has reported steps before, and none came for too long. None if it does not hang."""
    limit, world, known = job.budget.hang_s, job.world, job.progress
    if limit is None or world is None or known.step is None or job.hang_reason or job.failures or job.losses:
        return None
    began = world.since if world.adopted else (job.phases.started if job.phases is not None else None)
    if began is None or job.now < max(began, known.moved_at) + limit:
        return None
    is_forming = job.round is not None and job.round.draining
    return None if is_forming or job.finished else max(began, known.moved_at)
