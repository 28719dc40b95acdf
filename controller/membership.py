"""Decides what the rendezvous server is told about a job that uses it, and when a worker that was told to leave may go.
It decides nothing about ranks or rounds: those are the server's.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from controller.actions import Leave, Tell
from controller.snapshot import Phase, Pod, Snapshot
from elastic.api.job import ElasticStatus, Job, Leaving
from elastic.api.kinds import WORKER
from elastic.api.template import has_command
from elastic.api.words import Cause, RdzvBackend, WorkerLibrary


def is_ours(job: Job, snapshot: Snapshot) -> bool:
    """Does this job's group form at our rendezvous server? Not where the user chose another place, or nothing of ours can get in."""
    policy = job.elastic
    if policy is None or snapshot.settings.rendezvous is None or job.kind.name != "PyTorchJob" or WORKER not in job.replicas:
        return False
    if policy.rdzv_backend not in (None, RdzvBackend.ELASTIC) or policy.rdzv_host or policy.standalone:
        return False
    template = job.replicas[WORKER].template
    return "Master" not in job.replicas and policy.worker_library is not WorkerLibrary.NONE and has_command(template, job.kind)


@dataclass(frozen=True, slots=True)
class Departures:
    """Who is on the way out: those that may be deleted now, and those still given time."""

    may_go: tuple[Pod, ...]
    waiting: tuple[Leaving, ...]


def departures(job: Job, snapshot: Snapshot, known: Sequence[Leaving], *, surplus: Sequence[Pod]) -> Departures:
    """A worker goes once it has left the world, was never in it, or its time is up; until then it is only told."""
    assert job.elastic is not None
    by = snapshot.now + timedelta(seconds=job.elastic.scale_in_grace_seconds)
    leaving = {entry.member: entry for entry in known}
    for pod in surplus:
        leaving.setdefault(pod.name, Leaving(member=pod.name, cause=Cause.PLAN.value, by=by))
    for name, notice in snapshot.notices.items():
        leaving.setdefault(name, Leaving(member=name, cause=Cause.DISRUPTION.value, by=notice.by))
    pods = {pod.name: pod for pod in snapshot.pods if not pod.is_deleting and not pod.is_over}
    waiting = [entry for entry in leaving.values() if entry.member in pods]
    told = {entry.member for entry in known}
    may_go = [
        pods[entry.member]
        for entry in waiting
        if entry.cause == Cause.PLAN.value and _has_left(pods[entry.member], entry, snapshot, was_told=entry.member in told)
    ]
    going = {pod.name for pod in may_go}
    return Departures(tuple(may_go), tuple(entry for entry in waiting if entry.member not in going))


def _has_left(pod: Pod, entry: Leaving, snapshot: Snapshot, *, was_told: bool) -> bool:
    if pod.phase is not Phase.RUNNING or (entry.by is not None and entry.by <= snapshot.now):
        return True
    # A world that is being formed anew has no members yet; who leaves may then still be saving its state.
    world = snapshot.world
    return was_told and world is not None and bool(world.members) and pod.name not in world.members


def tell(job: Job, snapshot: Snapshot, *, staying: Sequence[Pod], coming: Collection[str], leaving: Sequence[Leaving]) -> Tell:
    """The whole expectation: who is there or coming, who of them does not run yet, and who leaves."""
    assert job.elastic is not None
    policy = job.elastic
    least, most = job.bounds
    sizes = policy.allowed_sizes or tuple(n for n in range(least, most + 1) if policy.size_step and n % policy.size_step == 0)
    return Tell(
        members=tuple(sorted({pod.name for pod in staying} | set(coming))),
        pending=tuple(sorted({pod.name for pod in staying if pod.phase is not Phase.RUNNING} | set(coming))),
        leaving=tuple(Leave(entry.member, entry.by or snapshot.now, entry.cause) for entry in leaving),
        least=least,
        most=most,
        sizes=sizes,
        max_restarts=policy.max_restarts,
        grace_s=float(policy.scale_in_grace_seconds),
        floor=job.status.elastic.generation if job.status.elastic else 0,
    )


def shown(status: ElasticStatus, snapshot: Snapshot, leaving: Sequence[Leaving]) -> ElasticStatus:
    """What the job's status tells of its group."""
    world = snapshot.world
    status = replace(status, backend="elastic", leaving=tuple(leaving))
    if world is None or world.generation <= status.generation:
        return status
    return replace(status, generation=world.generation, world_size=len(world.members))


def next_deadline(leaving: Sequence[Leaving]) -> datetime | None:
    return min((entry.by for entry in leaving if entry.by is not None), default=None)
