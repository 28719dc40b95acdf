"""Decides what the rendezvous server is told about a job that uses it, and when a worker that was told to leave may go.
It decides nothing about ranks or rounds: those are the server's.
"""

import base64
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from msgspec.structs import replace

from controller.deciding.actions import End, JobEvent, Leave, SetExpectation, normal
from controller.deciding.lifecycle import end_reasons, restart_accounting
from controller.deciding.lifecycle.disruption import notices
from controller.deciding.objects.ownership import owned_metadata
from controller.watching.snapshot import Phase, Pod, Snapshot, World
from elastic.api.job import ElasticStatus, Job, Leaving, Object
from elastic.api.kinds import WORKER
from elastic.api.template import default_container
from elastic.api.words import Cause, RdzvBackend, WorkerLibrary
from rendezvous.delivery import CA_KEY, TOKEN_KEY, Delivery, deliver, is_undeliverable, obstacle, rendezvous_flags


class RendezvousBackend(Enum):
    """Where a job's group forms."""

    NONE = ""
    """There is no group to form, or the user has seen to it; upstream's variables are all there is."""
    OURS = RdzvBackend.ELASTIC.value
    """At the rendezvous server."""
    STORE = RdzvBackend.C10D.value
    """Through c10d at a store pod of the job's own."""


def backend_in_use(job: Job, snapshot: Snapshot) -> RendezvousBackend:
    """Not ours where the user chose another place, or nothing of ours can get in; and while it runs nowhere else than where it began."""
    wanted = _wanted_place(job)
    if wanted is RendezvousBackend.NONE:
        return wanted
    if job.status.start_time is not None:
        begun = job.status.elastic.backend if job.status.elastic is not None else ""
        if begun == "":
            return RendezvousBackend.NONE
        return RendezvousBackend.STORE if begun == RendezvousBackend.STORE.value else wanted
    settings = snapshot.settings
    asks_for_c10d = job.elastic is not None and job.elastic.rdzv_backend is RdzvBackend.C10D
    if settings.strict or (settings.rendezvous is None and not asks_for_c10d):
        return RendezvousBackend.NONE
    return wanted


def _wanted_place(job: Job) -> RendezvousBackend:
    """The place that the job's own spec leads to, if the user left it to us."""
    policy = job.elastic
    if policy is None or job.kind.name != "PyTorchJob" or [*job.replicas] != [WORKER]:
        return RendezvousBackend.NONE
    if policy.rdzv_host or policy.standalone or policy.rdzv_backend in (RdzvBackend.ETCD, RdzvBackend.ETCD_V2):
        return RendezvousBackend.NONE
    if chosen_by_command(job):
        return RendezvousBackend.NONE
    return RendezvousBackend.STORE if policy.rdzv_backend is RdzvBackend.C10D or obstacle_to(job) else RendezvousBackend.OURS


def is_ours(job: Job, snapshot: Snapshot) -> bool:
    return backend_in_use(job, snapshot) is RendezvousBackend.OURS


def chosen_by_command(job: Job) -> bool:
    """Flags in the container's own command win over any environment, so nothing is put beside them."""
    return bool(rendezvous_flags(default_container(job.replicas[WORKER].template, job.kind)))


def obstacle_to(job: Job) -> str:
    """Why our library cannot be in the workers, in words; empty where it can."""
    assert job.elastic is not None
    if job.elastic.worker_library is WorkerLibrary.NONE:
        return "elasticPolicy.workerLibrary is None"
    return obstacle(job.replicas[WORKER].template, container=job.kind.container)


def secret_name(job: Job) -> str:
    return f"{job.metadata.name}-elastic"


def secret(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    """What a worker shows to the rendezvous server, and by what it knows the server."""
    rendezvous = snapshot.settings.rendezvous
    if rendezvous is None or not is_ours(job, snapshot):
        return
    data = {TOKEN_KEY: snapshot.token, CA_KEY: rendezvous.ca}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": owned_metadata(job, secret_name(job)), "type": "Opaque", "data": encoded}


def delivered(job: Job, pod: Object, index: int, snapshot: Snapshot) -> Object:
    """The worker's pod with all that torchrun needs to meet its peers at our server."""
    settings = snapshot.settings
    assert settings.rendezvous is not None
    delivery = Delivery(
        job_uid=job.metadata.uid,
        index=index,
        image=settings.worker_image,
        endpoint=settings.rendezvous.endpoint,
        secret=secret_name(job),
        container=job.kind.container,
    )
    return deliver(pod, delivery)


def elsewhere(job: Job, snapshot: Snapshot) -> Iterator[JobEvent]:
    """Tells why a job that could have our rendezvous has torch's own."""
    policy = job.elastic
    if policy is None or policy.rdzv_backend is not None or snapshot.settings.rendezvous is None:
        return
    if backend_in_use(job, snapshot) is RendezvousBackend.STORE and (reason := obstacle_to(job)):
        yield normal("OtherRendezvous", f"{job.kind.name} {job.metadata.name} meets through c10d, because {reason}.")


def undeliverable(job: Job, pods: Sequence[Pod]) -> str:
    """Why a worker's image cannot take our library, where one has said so; the whole group is then made anew without it."""
    for pod in pods:
        for container in pod.containers:
            for code, message in ((container.exit_code, container.message), (container.last_exit_code, container.last_message)):
                reason = is_undeliverable({"exitCode": code, "message": message}, job.metadata.uid)
                if reason:
                    return reason
    return ""


FORMED = "running"
"""The phase of a world whose members work; in any other one, who leaves may still be saving its state."""
FINISHED = "finished"
"""The phase once the work is done and nobody is waited for who was not there at its end."""


@dataclass(frozen=True, slots=True)
class Departures:
    """Who is on the way out, and whose pods may be deleted now."""

    may_go: tuple[Pod, ...]
    leaving: tuple[Leaving, ...]


def still_leaving(snapshot: Snapshot, known: Sequence[Leaving]) -> list[Leaving]:
    """Of those told to leave: the ones whose very pod is there, and whose notice, where that was the cause, still stands.
    A node that is gone took its taint along, and a pod that has failed had heard it; that withdraws nothing.
    """
    pods, noticed = _may_leave(snapshot), notices(snapshot)

    def stands(entry: Leaving, pod: Pod) -> bool:
        is_beyond = pod.node not in snapshot.nodes or pod.phase is Phase.FAILED
        return entry.cause == Cause.PLAN.value or entry.member in noticed or is_beyond

    return [e for e in known if (pod := pods.get(e.member)) is not None and pod.uid == e.uid and stands(e, pod)]


def _may_leave(snapshot: Snapshot) -> dict[str, Pod]:
    """By name, the pods that may be on their way out: one that has done its work has not left, and one that failed is yet to be removed."""
    return {pod.name: pod for pod in snapshot.pods if pod.phase is not Phase.SUCCEEDED}


def without_spared(snapshot: Snapshot, leaving: Sequence[Leaving], *, short: int) -> list[Leaving]:
    """Whoever was told to go only because there were too many stays after all, where others were lost meanwhile."""
    here = {pod.name for pod in snapshot.pods if pod.is_active}
    spared = [entry for entry in leaving if entry.cause == Cause.PLAN.value and entry.member in here][: max(0, short)]
    return [entry for entry in leaving if entry not in spared]


def departures(job: Job, snapshot: Snapshot, leaving: Sequence[Leaving], *, surplus: Sequence[Pod]) -> Departures:
    """A worker goes once it has left the world, was never in it, or its time is up; until then it is only told.
    It counts as leaving until its pod is gone, so that how that pod ends is never taken for a failure.
    """
    assert job.elastic is not None
    by = snapshot.now + timedelta(seconds=job.elastic.scale_in_grace_seconds)
    pods = _may_leave(snapshot)
    told = {entry.member: entry for entry in leaving}
    new = [
        Leaving(member=pod.name, uid=pod.uid, cause=Cause.PLAN.value, by=by) for pod in surplus if pod.name in pods and pod.name not in told
    ]
    for name, notice in notices(snapshot).items():
        if name not in told:
            new.append(Leaving(member=name, uid=pods[name].uid, cause=Cause.DISRUPTION.value, by=notice.by))
    out = (*leaving, *new)
    may_go = [pods[entry.member] for entry in out if _may_go(pods[entry.member], entry, snapshot, was_told=entry.member in told)]
    return Departures(tuple(may_go), out)


def _may_go(pod: Pod, entry: Leaving, snapshot: Snapshot, *, was_told: bool) -> bool:
    """May we delete it? Who leaves for the cluster's reasons is the cluster's to delete, unless it only lies about."""
    if pod.is_deleting:
        return False
    if pod.phase is Phase.FAILED:
        return True
    return entry.cause == Cause.PLAN.value and _has_left(pod, entry, snapshot, was_told=was_told)


def _has_left(pod: Pod, entry: Leaving, snapshot: Snapshot, *, was_told: bool) -> bool:
    if pod.phase is not Phase.RUNNING:
        return True
    if not was_told:
        return False  # not before its leaving stands in the status: whoever comes after us would take its end for a disruption
    if entry.by is not None and entry.by <= snapshot.now:
        return True
    world = snapshot.world
    return world is not None and world.phase == FORMED and pod.name not in world.members


def tell(job: Job, snapshot: Snapshot, *, staying: Sequence[Pod], coming: Collection[str], leaving: Sequence[Leaving]) -> SetExpectation:
    """The whole expectation: who is there or coming, who of them does not run yet, and who leaves."""
    assert job.elastic is not None
    policy, known = job.elastic, job.status.elastic or ElasticStatus()
    least, most = job.bounds
    going = {entry.uid for entry in leaving}
    failed = [pod for pod in snapshot.pods if pod.phase is Phase.FAILED and not pod.is_deleting and pod.uid not in going]
    sizes = policy.allowed_sizes or tuple(n for n in range(least, most + 1) if policy.size_step and n % policy.size_step == 0)
    return SetExpectation(
        members=tuple(sorted({pod.name for pod in staying} | set(coming))),
        pending=tuple(sorted({pod.name for pod in staying if pod.phase is not Phase.RUNNING} | set(coming))),
        leaving=tuple(Leave(entry.member, entry.by or snapshot.now, entry.cause) for entry in leaving),
        ended=tuple(end for pod in (*staying, *failed) if (end := _end_of(job, pod)) is not None),
        finished=tuple(sorted(pod.name for pod in staying if pod.phase is Phase.SUCCEEDED)),
        least=least,
        most=max(most, len(staying) + len(coming)),
        sizes=sizes,
        budget=restart_accounting.budget_of(policy),
        restarts=tuple(sorted(known.restarts.items())),
        grace_s=float(policy.scale_in_grace_seconds),
        floor=max(known.generation, snapshot.world.generation if snapshot.world else 0),
        term=snapshot.term,
        open=known.open,
        booked_to=known.generation,
        closed=known.closed,
        charged=known.charged,
        fruitless=known.fruitless,
        step=known.step,
    )


def _end_of(job: Job, pod: Pod) -> End | None:
    """The newest end of the worker's container with an error, until the server has confirmed that it took that into account."""
    container = next((c for c in pod.containers if c.name == job.kind.container), None)
    if container is None or end_reasons.cause_of(pod, container.name) is Cause.DISRUPTION:
        return None
    code, reason, message, run = container.exit_code, container.exit_reason, container.message, container.restarts
    if code is None:
        code, reason, message, run = container.last_exit_code, container.last_exit_reason, container.last_message, container.restarts - 1
    if not code or is_undeliverable({"exitCode": code, "message": message}, job.metadata.uid):
        return None
    cause = Cause.OUT_OF_MEMORY if end_reasons.of_container(reason) is end_reasons.Meaning.OUT_OF_MEMORY else Cause.USER
    if end_reasons.came_from_outside(code, reason):
        cause = Cause.DISRUPTION  # makes certain what the server saw of it, a broken connection or a farewell, and counts nothing by itself
    end = End(pod.name, pod.uid, max(0, run), cause, is_last=pod.phase is Phase.FAILED)
    is_counted = job.status.elastic is not None and end.id in job.status.elastic.counted
    return None if is_counted else end


def is_accounted(job: Job, pod: Pod, snapshot: Snapshot) -> bool:
    """Whether the server has taken into account how this pod ended, if that is for it to count."""
    end = _end_of(job, pod)
    return end is None or end.cause is Cause.DISRUPTION or (snapshot.world is not None and end.id in snapshot.world.explained)


def with_world(status: ElasticStatus, snapshot: Snapshot, leaving: Sequence[Leaving]) -> ElasticStatus:
    """What the job's status tells of its group: who leaves, its restarts, and of the newest world its number, its size and its history."""
    status = replace(status, backend=RdzvBackend.ELASTIC.value, leaving=tuple(leaving))
    if snapshot.world is None:
        return status
    status = restart_accounting.booked(status, snapshot.world)
    return restart_accounting.settled(_of_world(status, snapshot, snapshot.world), snapshot.pods)


def _of_world(status: ElasticStatus, snapshot: Snapshot, world: World) -> ElasticStatus:
    status = replace(status, closed=world.closed or status.closed)
    if world.fruitless is not None:
        status = replace(status, fruitless=world.fruitless, step=world.step)
    last = status.last_rescale
    if world.rescale is not None and last is not None and world.rescale.id == last.id:
        # Nobody but us writes the number of its group; who has lowered it, or written what cannot be read, learns it again.
        generation = max(status.generation, world.generation) if world.phase == FORMED else status.generation
        return replace(status, generation=generation, last_rescale=replace(last, phases=world.rescale.phases))
    if world.phase != FORMED or world.generation <= status.generation:
        return status
    size = len(world.members)
    if world.rescale is not None:
        status = replace(status, last_rescale=replace(world.rescale, at=snapshot.now, from_size=status.world_size, to_size=size))
    return replace(status, generation=world.generation, world_size=size)


def next_deadline(leaving: Sequence[Leaving], *, now: datetime) -> datetime | None:
    """When time alone may change something: a deadline that has passed did what it could."""
    return min((entry.by for entry in leaving if entry.by is not None and entry.by > now), default=None)
