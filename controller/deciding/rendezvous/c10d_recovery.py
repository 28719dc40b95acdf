"""Decide what a group that meets through torch's own c10d does after it has lost a member.

Torch charges a peer's death to each survivor's own maxRestarts, and the first agent that has none left closes torch's rendezvous for good.
If the loss is not charged to the job, the group then restarts on a new store, also uncharged. Otherwise the group has used up its budget.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from elastic.api.book import Leaving, Rescale
from elastic.api.job import ElasticStatus, Job
from elastic.api.kinds import WORKER
from elastic.api.words import Cause, RdzvBackend
from elastic_training.controller.deciding.actions import Plan, normal
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.verdicts import Fate
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.c10d_agents import SKEW, WINDOW, came_too_late, first_ends, gave_up, own_container
from elastic_training.controller.deciding.rendezvous.c10d_store import store_deleted, store_seen
from elastic_training.controller.deciding.replicas import loss_backoff, pod_revision
from elastic_training.controller.deciding.status_room import listed, with_leaving
from elastic_training.controller.facts.snapshot import Container, Pod, PodPhase, Snapshot

REPORTED_WITHIN_S = 10.0
"""Seconds after an agent's end within which another kubelet may still report its cause."""
HOPELESS_RESTARTS = 2
"""An agent that found no store yet has another try before its end is taken for the group's."""
ID_SEPARATOR = "."
"""Joins the checksums of the lost pods in a rescale's id, by which release 0.4.0 knows whose loss is recorded."""
MOST_LOST = 16
"""A loss of more pods is recorded under one checksum, and again as each of them is gone."""


def with_c10d_world(view: JobView, known: ElasticStatus, surplus: Sequence[Pod], *, doomed: Sequence[Leaving] = ()) -> ElasticStatus:
    """Return the status with the number of workers that work, the newest loss, and the workers that leave.

    Workers leave because fewer are wanted (`surplus`), or with their node.
    """
    snapshot, leaving = view.snapshot, [entry for entry in known.leaving if entry.cause == Cause.PLAN.value]
    status = replace(known, backend=RdzvBackend.C10D.value, leaving=_leaving(snapshot, [*doomed, *leaving], surplus))
    if pod_revision.awaits_rendezvous(view):
        return status
    members = _members(view)
    working = [pod for pod in members if pod.is_active and not pod.disruption]
    going = [pod for pod in members if pod.is_deleting or pod.disruption]
    # A pod that finished its work belonged to this group to its end, and a pod that came too late for the group is no loss.
    late = {pod.uid for pod in shut_out(view)}
    size = len(working) + sum(pod.phase is PodPhase.SUCCEEDED or (pod.phase is PodPhase.FAILED and pod.uid in late) for pod in members)
    status = replace(status, world_size=size)
    # A pod that vanished may come into view together with its replacement, which leaves the count as it was.
    before = max(known.world_size or size + _lost_before(view, known), size + loss_backoff.vanished_now(view, WORKER))
    last_id = known.last_rescale.id if known.last_rescale is not None else ""
    new = _unrecorded(going, known.last_rescale)
    if size >= before and not new:
        return status
    there = {pod.uid for pod in snapshot.pods}
    planned = {entry.uid for entry in leaving}
    # If no more pods vanished since the last reconcile than had to leave, the vanished pods are taken for those that had to leave.
    vanished = before - size - len(new)
    is_planned = all(pod.uid in planned for pod in going) and vanished <= len(planned - there)
    names = listed(sorted([pod.name for pod in new] + [entry.member for entry in leaving if entry.uid not in there])) or "a worker"
    loss = Rescale(
        id=ID_SEPARATOR.join(_ids_of(going) if new else [*_ids_of(going), _id_of(working, f"{last_id}/{before}")]),
        lost=_lost(going),
        cause=(Cause.PLAN if is_planned else Cause.DISRUPTION).value,
        reason=f"{names} left; {len(working)} work",
        at=snapshot.now,
        from_size=max(before, len(working)),
        to_size=len(working),
    )
    return replace(status, last_rescale=loss)


def _leaving(snapshot: Snapshot, known: Sequence[Leaving], surplus: Sequence[Pod]) -> tuple[Leaving, ...]:
    """Return the entries of workers that leave. They are not notified at the store, but the status names them until their pods are gone."""
    told = {entry.uid for entry in known}
    new = (Leaving(member=pod.name, uid=pod.uid, cause=Cause.PLAN.value, by=snapshot.now) for pod in surplus if pod.uid not in told)
    going = {pod.uid for pod in (*surplus, *(pod for pod in snapshot.pods if pod.is_deleting))}
    return with_leaving([entry for entry in known if entry.uid in going or entry.cause != Cause.PLAN.value], new)


def known_to_leave(view: JobView, surplus: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the surplus pods that may be deleted.

    The stored status must name them as leaving first. Otherwise the next controller would take their end for a disruption.
    """
    stored = view.job.status.elastic.leaving if view.job.status.elastic is not None else ()
    leaving = {entry.uid for entry in stored}
    return tuple(pod for pod in surplus if pod.uid in leaving)


def restart_on_fresh_store(view: JobView) -> Plan | None:
    """Delete the store if a loss made torch close its rendezvous, so that the group meets at a fresh one, uncharged."""
    job, last = view.job, _newest_loss(view) if view.backend is RendezvousBackend.STORE else None
    pod = _gave_up_after(view, last) if last is not None else None
    if pod is None:
        return None
    elastic = _with_loss_answered(replace(view.status.elastic or ElasticStatus(), last_rescale=last), view.snapshot)
    message = (
        f"{job.kind.name} {job.metadata.name} restarts its group on a new store, because the agent of pod {pod.name} gave up after a loss."
    )
    event = normal("FreshRendezvous", message, about=elastic.last_rescale.id if elastic.last_rescale else "")
    deletion = tuple(store_deleted(job, view.snapshot))
    return Plan(deletion, replace(view.status, elastic=elastic), (*view.news, event), is_written_last=True)


def _newest_loss(view: JobView) -> Rescale | None:
    """Return the newest loss, stored or new: a lost pod and the agent that gave up because of it may be seen in the same reconcile."""
    known = view.status.elastic or ElasticStatus()
    last, members = known.last_rescale, _members(view)
    going = [pod for pod in members if pod.is_deleting or pod.disruption]
    is_new = bool(_unrecorded(going, last))
    has_vanished = loss_backoff.vanished_now(view, WORKER) > 0 or (not known.world_size and _lost_before(view, known) > 0)
    if is_new or has_vanished or len(members) < known.world_size:
        return with_c10d_world(view, known, ()).last_rescale
    return last


def _gave_up_after(view: JobView, last: Rescale) -> Pod | None:
    """Return the first pod whose agent exited within WINDOW of this loss, if the loss is uncharged and no fresh store has answered it."""
    job = view.job
    if last.at is None or last.cause not in (Cause.PLAN.value, Cause.DISRUPTION.value):
        return None
    late = {pod.uid for pod in shut_out(view)}
    for pod in _members(view):
        if pod.is_deleting or pod.disruption or pod.uid in late:
            continue
        container = own_container(job, pod)
        if container is not None and gave_up(container) and _may_follow(container, last.at):
            return pod
    return None


def _may_follow(container: Container, loss_at: datetime) -> bool:
    """Return whether the container ended within WINDOW of the loss.

    The time of the loss is by our clock, the time of the end by the node's clock. A container that does not run now may have ended earlier:
    if the rendezvous was closed before the loss, its agents end again and again.
    """
    at = container.ended_at
    if at is None:
        return False
    begin = loss_at - (SKEW if container.is_running else WINDOW)
    return begin <= at <= loss_at + WINDOW


def _with_loss_answered(known: ElasticStatus, snapshot: Snapshot) -> ElasticStatus:
    """Return the status once a fresh store has answered the loss: ends from now on have another reason."""
    last = known.last_rescale or Rescale()
    words = f"{last.reason}; an agent gave up because of it, and the group restarts on a new store"
    answered = Rescale(id=last.id, cause=Cause.COLLATERAL.value, reason=words, at=snapshot.now, from_size=last.from_size, lost=last.lost)
    return replace(loss_backoff.without_store(known), last_rescale=answered, world_size=0)


def given_up(view: JobView) -> str:
    """Say why the group will never work again; return "" while it may."""
    job, members = view.job, _members(view)
    if not members or not all(_is_hopeless(own_container(job, pod)) for pod in members) or job.elastic is None:
        return ""
    return (
        f"all its agents keep ending: torch's rendezvous closes for good when one agent has used up "
        f"maxRestarts ({job.elastic.max_restarts or 0}), and each agent counts for itself"
    )


def shut_out(view: JobView) -> list[Pod]:
    """Workers that came when the work was done: their ends say nothing about the job."""
    if view.backend is not RendezvousBackend.STORE:
        return []
    ends = first_ends(view.job, view.snapshot.pods)
    return [pod for pod in _members(view) if pod.phase is not PodPhase.SUCCEEDED and came_too_late(view.job, pod, ends.get(pod.group))]


def is_finishing(view: JobView) -> bool:
    """Return whether a member has finished its work. From then on no worker can join, so none is replaced."""
    return any(pod.phase is PodPhase.SUCCEEDED and not pod.is_deleting for pod in _members(view))


def once_certain(view: JobView, failed: Plan) -> Plan:
    """Return the plan by which the job fails, or one that waits.

    An agent's end may be seen before its cause, a loss or a peer that ended with 0: another kubelet reports the peer, and another watch
    shows the store. So the plan waits for these reports, and rests on the store, which is read again.
    """
    now, ends = view.snapshot.now, [_ended_at(view.job, verdict.pod) for verdict in view.verdicts if verdict.fate is Fate.FATAL]
    certain_at = min((after(end, REPORTED_WITHIN_S) for end in ends if end is not None), default=now)
    if now < certain_at <= after(now, REPORTED_WITHIN_S) + SKEW:
        return Plan(status=view.status, news=view.news, look_again_at=certain_at)
    return dataclasses.replace(failed, rests_on=tuple(store_seen(view.job, view.snapshot)))


def _ended_at(job: Job, pod: Pod) -> datetime | None:
    """Return when the pod's agent gave up."""
    container = own_container(job, pod)
    return container.ended_at if container is not None and gave_up(container) else None


def _lost_before(view: JobView, known: ElasticStatus) -> int:
    """Return how many workers were lost before the first look, by the number that the status says were made.

    If the status has no number, count the workers that are missing while others have worked for a while, because a job's first workers are
    created at once.
    """
    vanished, members = loss_backoff.vanished(view, WORKER), _members(view)
    containers = [own_container(view.job, pod) for pod in members]
    starts = [container.started_at for container in containers if container is not None and container.started_at is not None]
    began = min(starts, default=None)
    if began is None or began + SKEW >= view.snapshot.now:
        return vanished
    # An older entry tells of an earlier group: the status may have been written for the last time before this one was made.
    newer = [entry.type for entry in known.replaced if entry.made or (entry.at is not None and entry.at > began)]
    if WORKER in {*newer, *(entry.type for entry in known.refused)}:
        return vanished
    # The user may have asked for fewer meanwhile, but a worker's number says that those before it were there.
    there = max(view.job.workers, *(pod.index + 1 for pod in members))
    return max(vanished, there - len(members))


def _members(view: JobView) -> list[Pod]:
    """Return the pods that were made for the store's present run."""
    if pod_revision.awaits_rendezvous(view):
        return []
    name = pod_revision.group_of(view)
    return [pod for pod in view.snapshot.pods if pod.group == name]


def _is_hopeless(container: Container | None) -> bool:
    """Return whether this agent ends again and again. An agent that worked for a while had been let in."""
    if container is None or container.waiting != "CrashLoopBackOff":
        return False
    began = container.last_started_at
    has_worked = began is not None and container.ended_at is not None and container.ended_at > began + WINDOW
    return container.restarts >= HOPELESS_RESTARTS and gave_up(container) and not has_worked


def _unrecorded(going: Sequence[Pod], last: Rescale | None) -> list[Pod]:
    """Return the pods whose loss is not the newest that the status has."""
    if last is None:
        return list(going)
    # Release 0.4.0 keeps the pods only in the id; the next release leaves the id out.
    known = {*last.lost, *last.id.split(ID_SEPARATOR)}
    if known.issuperset(_lost(going)) or known.issuperset(_ids_of(going)):
        return []
    return [pod for pod in going if known.isdisjoint((pod.uid, _id_of([pod])))]


def _lost(pods: Sequence[Pod]) -> tuple[str, ...]:
    """Return how the status names lost pods: by their uids, or by one checksum if they are many."""
    return tuple(pod.uid for pod in pods) if len(pods) <= MOST_LOST else (_id_of(pods),)


def _ids_of(pods: Sequence[Pod]) -> list[str]:
    """Return the checksums by which release 0.4.0 knows lost pods: one each, or one for all if they are many."""
    return [_id_of([pod]) for pod in pods] if len(pods) <= MOST_LOST else [_id_of(pods)]


def _id_of(pods: Sequence[Pod], before: str = "") -> str:
    return f"{zlib.crc32(' '.join([*sorted(pod.uid for pod in pods), before]).encode()):08x}"
