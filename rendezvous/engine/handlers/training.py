"""Put a step that training reported into the job."""

from __future__ import annotations

from ..state import progress
from ..state.job import JobState
from ..values import replace


def stepped(job: JobState, generation: int, step: int) -> tuple[JobState, bool]:
    """Return the job after training reported a step, and whether the controller must hear of it.

    It must hear of the first step of a world, which ends its rescale, and of the first one after restarts without progress.
    """
    world, phases, before = job.membership.world, job.timings.phases, job.progress
    if world is None or generation != world.generation:
        return job, False
    ends_rescale = phases is not None and phases.stepped is None
    if phases is not None and ends_rescale:
        phases = replace(phases, started=phases.started or job.now, stepped=job.now)
        job = replace(job, timings=replace(job.timings, phases=phases))
    after = progress.stepped(before, step, now=job.now)
    is_news = after != before and (before.step_in_world is None or after.fruitless != before.fruitless)
    return replace(job, progress=after), ends_rescale or is_news
