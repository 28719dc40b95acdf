"""Whether training hangs: its workers run, it has reported steps before, and none came for too long."""

from dataclasses import replace

from elastic.api.words import Cause
from elastic.membership.wire import Restart
from rendezvous.machine.restart_budget import with_restarts
from rendezvous.machine.state.job import Job


def with_hang(job: Job) -> Job:
    """A hang is certain at once. So it is counted at once, and members hold it for the next server."""
    since, world = _hanging_since(job), job.membership.world
    if since is None or world is None:
        return job
    reason = f"training reported no further step for {job.budget.hang_s:g} s"
    restart = Restart(id=world.id, generation=world.generation, cause=Cause.HANG.value)
    job = with_restarts(replace(job, timings=replace(job.timings, first_sign_at=since)), (restart,))
    known = job.accounting
    known = replace(
        known,
        hang_reason=reason,
        trouble=known.trouble or (reason, Cause.HANG.value),
        unacknowledged_restarts=(*known.unacknowledged_restarts, restart),
    )
    return replace(job, accounting=known)


def _hanging_since(job: Job) -> float | None:
    """When training began to hang; None if it does not."""
    limit, group, progress = job.budget.hang_s, job.membership, job.progress
    if limit is None or group.world is None or progress.step is None or job.accounting.is_world_broken:
        return None
    phases = job.timings.phases
    began = group.world.since if group.world.adopted else (phases.started if phases is not None else None)
    if began is None or job.now < max(began, progress.moved_at) + limit:
        return None
    return None if group.is_draining or group.finished else max(began, progress.moved_at)
