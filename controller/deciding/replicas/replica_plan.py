"""Decides who should be there now: for each replica type the places that are filled or to be filled, and the pods to part with.
At our own rendezvous any indexes will do and leavers are told first; at c10d's store any will do; everywhere else a place is a rank and
is filled again as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.deciding.actions import SetExpectation
from controller.deciding.lifecycle import disruption, gang_restart
from controller.deciding.objects.pods import replica_name
from controller.deciding.rendezvous import membership
from controller.deciding.rendezvous.membership import RendezvousBackend
from controller.deciding.replicas import pod_revision, replica_slots, slot_assignment
from controller.frameworks import FRAMEWORKS
from controller.watching.snapshot import Pod, Snapshot
from elastic.api.job import Job, Leaving
from elastic.api.kinds import WORKER

ReplicaSlot = tuple[str, int]
"""A replica type and an index."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """`filled` slots have a pod or get one now, `missing` ones get it now; `surplus` pods are deleted now; `leaving` were notified."""

    filled: tuple[ReplicaSlot, ...] = ()
    missing: tuple[ReplicaSlot, ...] = ()
    surplus: tuple[Pod, ...] = ()
    leaving: tuple[Leaving, ...] = ()
    expectations: tuple[SetExpectation, ...] = ()


def plan_replicas(job: Job, snapshot: Snapshot, known: Sequence[Leaving]) -> ReplicaPlan:
    """`known` are those that were told to leave before."""
    may_start = gang_restart.may_start(job, snapshot)
    pods = {type: [pod for pod in snapshot.pods if pod.type == type.lower()] for type in job.replicas}
    if pod_revision.is_waiting(job, snapshot):
        return ReplicaPlan(filled=tuple((type, pod.index) for type, found in pods.items() for pod in found))
    framework = FRAMEWORKS[job.kind.name]
    parts = [_part(job, snapshot, known, pods[type], type=type) for type in job.replicas]
    return ReplicaPlan(
        filled=tuple(slot for part in parts for slot in part.filled),
        missing=tuple(p for part in parts for p in part.missing if may_start and framework.can_create(job, p[0], snapshot)),
        surplus=tuple(pod for part in parts for pod in part.surplus),
        leaving=tuple(entry for part in parts for entry in part.leaving),
        expectations=tuple(word for part in parts for word in part.expectations),
    )


def _part(job: Job, snapshot: Snapshot, known: Sequence[Leaving], pods: Sequence[Pod], *, type: str) -> ReplicaPlan:
    """What becomes of one replica type; who may be missed is for the place to say where the group meets."""
    if type == WORKER and membership.is_ours(job, snapshot):
        return _members(job, snapshot, known, pods)
    if type == WORKER and membership.backend_in_use(job, snapshot) is RendezvousBackend.STORE:
        assigned = _at_store(job, snapshot, pods)
        return ReplicaPlan(
            filled=_filled(type, assigned), missing=tuple((type, index) for index in assigned.missing), surplus=assigned.surplus
        )
    assigned = replica_slots.of_workers(job, snapshot) if type == WORKER else slot_assignment.in_places(job.replicas[type].replicas, pods)
    return ReplicaPlan(filled=_filled(type, assigned), missing=tuple((type, index) for index in assigned.missing), surplus=assigned.surplus)


def _at_store(job: Job, snapshot: Snapshot, pods: Sequence[Pod]) -> slot_assignment.SlotAssignment:
    """Pods of a former run of the store leave as those of the next one come, under other names: `kubectl drain` evicts by name, and would
    go on to evict the new ones wherever they are."""
    stale = {pod.name for pod in pod_revision.stale_pods(job, snapshot)}
    of_this_run = replace(snapshot, pods=tuple(pod for pod in snapshot.pods if pod.name not in stale))
    count = job.workers + disruption.to_be_moved(job, of_this_run)
    return slot_assignment.by_count(count, pods, leaving=stale | set(disruption.notices(snapshot)))


def _members(job: Job, snapshot: Snapshot, known: Sequence[Leaving], pods: Sequence[Pod]) -> ReplicaPlan:
    count = job.workers + disruption.to_be_moved(job, snapshot)
    noticed = set(disruption.notices(snapshot))
    still = membership.still_leaving(snapshot, known)
    short = count - len(slot_assignment.who_stay(pods, leaving={entry.member for entry in still} | noticed))
    still = membership.without_spared(snapshot, still, short=short)
    gone = {entry.member for entry in still} | noticed
    assigned = slot_assignment.by_count(count, pods, leaving=gone)
    departures = membership.departures(job, snapshot, still, surplus=assigned.surplus)
    coming = [replica_name(job, WORKER, index) for index in assigned.missing]
    expectation = membership.tell(job, snapshot, staying=assigned.present, coming=coming, leaving=departures.leaving)
    missing = tuple((WORKER, index) for index in assigned.missing)
    return ReplicaPlan(_filled(WORKER, assigned), missing, departures.may_go, departures.leaving, (expectation,))


def _filled(type: str, assigned: slot_assignment.SlotAssignment) -> tuple[ReplicaSlot, ...]:
    return tuple((type, index) for index in (*(pod.index for pod in assigned.present), *assigned.missing))
