"""Name the workers that run and are not at the rendezvous, because their pods look healthy."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from elastic.api.kinds import WORKER
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.facts.world import WorldSeen

LATE = timedelta(seconds=30)
"""Shorter delays are common, because Python and torch load."""
NAMED = 3
GATHERING = (WorldPhase.EMPTY, WorldPhase.FORMING)
"""The phases of a job before its world."""


def in_words(view: JobView) -> str:
    """Name the workers that fell silent, or else the workers that never came; return "" if all are there."""
    missing = list(_missing(view))
    if silent := [f"{name}, which has been silent since {at.astimezone(UTC):%H:%M:%S} UTC" for name, at in _silent(view, missing)]:
        return f"{len(silent)} of {view.job.workers} workers: {'; '.join(silent[:NAMED])}{_more(len(silent))}"
    late = [name for name, late_at in _expected_at_rendezvous(view, missing) if late_at <= view.snapshot.now]
    if not late:
        return ""
    have = "have" if len(late) > 1 else "has"
    names = f"{', '.join(late[:NAMED])}{_more(len(late))}"
    words = f"{names} {have} run for {LATE.seconds} s and {have} not come to the rendezvous; see the log"
    return f"{len(late)} of {view.job.workers} workers: {words}"


def look_again_at(view: JobView) -> datetime | None:
    """Return when the next worker will be late."""
    expected = _expected_at_rendezvous(view, list(_missing(view)))
    return min((late_at for _, late_at in expected if late_at > view.snapshot.now), default=None)


def _more(count: int) -> str:
    return f" and {count - NAMED} more" if count > NAMED else ""


def _missing(view: JobView) -> Iterator[tuple[str, datetime]]:
    """Yield each worker that runs and is not at the rendezvous, with the start of its container."""
    world, known = view.snapshot.world, view.status.elastic
    if not view.sees_members or world is None:
        return
    leaving = {entry.member for entry in known.leaving} if known is not None else set()
    for pod in view.snapshot.pods:
        is_here = pod.name in world.members or pod.name in world.waiting
        if pod.type != WORKER.lower() or not pod.is_active or is_here or pod.name in leaving:
            continue
        container = next((c for c in pod.containers if c.name == view.job.kind.container), None)
        if container is not None and container.is_running and container.started_at is not None:
            yield pod.name, container.started_at


def _silent(view: JobView, missing: Sequence[tuple[str, datetime]]) -> Iterator[tuple[str, datetime]]:
    """Yield the missing workers that were at the rendezvous in this run of their container, and when each was last heard."""
    world = view.snapshot.world
    for name, started_at in missing:
        if world is not None and name in world.silent and started_at <= world.silent[name]:
            yield name, world.silent[name]


def _expected_at_rendezvous(view: JobView, missing: Sequence[tuple[str, datetime]]) -> Iterator[tuple[str, datetime]]:
    """Yield the missing workers, each with the time from which it is late."""
    world, known = view.snapshot.world, view.status.elastic
    if world is None:
        return
    is_first = world.phase in GATHERING and (known is None or not known.generation)
    for name, started_at in missing:
        if is_first:
            yield name, started_at + LATE
        elif _knows_all(world) and world.since is not None:
            yield name, max(started_at, world.since) + LATE


def _knows_all(world: WorldSeen) -> bool:
    """Return whether the members of a world at work are known. A server that has just started hears from them one by one."""
    return world.phase == WorldPhase.RUNNING and world.size == len(world.members)
