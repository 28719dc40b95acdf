"""Names the workers that have run for a while and have not come to the rendezvous, before a job's first world: their pods look healthy."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from controller.deciding.job_view import JobView
from elastic.api.kinds import WORKER
from elastic.membership.phases import WorldPhase

LATE = timedelta(seconds=30)
"""Less is common: Python and torch load."""
NAMED = 3
GATHERING = (WorldPhase.EMPTY, WorldPhase.FORMING)
"""The phases of a job before its world."""


def in_words(view: JobView) -> str:
    """Name the workers that have not come to the rendezvous in time; return "" if no worker is late."""
    late = [name for name, late_at in _expected_at_rendezvous(view) if late_at <= view.snapshot.now]
    if not late:
        return ""
    names, more = ", ".join(late[:NAMED]), f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
    have = "have" if len(late) > 1 else "has"
    return (
        f"{len(late)} of {view.job.workers} workers: {names}{more} {have} run for {LATE.seconds} s and {have} not come to the rendezvous; "
        "see the log"
    )


def look_again_at(view: JobView) -> datetime | None:
    """Return when the next worker will be late."""
    return min((late_at for _, late_at in _expected_at_rendezvous(view) if late_at > view.snapshot.now), default=None)


def _expected_at_rendezvous(view: JobView) -> Iterator[tuple[str, datetime]]:
    """Workers that run and have not come, each with the time from which it is late."""
    world, known = view.snapshot.world, view.status.elastic
    if not view.sees_members or world is None or world.phase not in GATHERING or (known is not None and known.generation):
        return
    for pod in view.snapshot.pods:
        if pod.type != WORKER.lower() or not pod.is_active or pod.name in world.waiting:
            continue
        container = next((c for c in pod.containers if c.name == view.job.kind.container), None)
        if container is not None and container.is_running and container.started_at is not None:
            yield pod.name, container.started_at + LATE
