"""Decide which pods should exist now: for each replica type the indexes to fill, and the pods to delete.

Workers that meet at our server, in an etcd or by our list of hosts may have any indexes, and are notified before they go. Other
interchangeable workers may also have any indexes. For all other replicas, an index is a rank and is filled again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastic.api.book import Leaving
from elastic.api.kinds import WORKER
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import gang_restart
from elastic_training.controller.deciding.objects.pods import replica_name
from elastic_training.controller.deciding.rendezvous import c10d_recovery, departures, etcd, host_list
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.expectation import expectation
from elastic_training.controller.deciding.replicas import pod_revision, replica_slots, slot_assignment
from elastic_training.controller.facts.snapshot import Pod
from elastic_training.controller.frameworks import FRAMEWORKS

ReplicaSlot = tuple[str, int]
"""A replica type and an index."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """`filled` slots have a pod or get one now, `missing` ones get it now; `to_delete` pods go now.

    `surplus` are all that are to go from c10d's store; `leaving` are told now or were before.
    """

    filled: tuple[ReplicaSlot, ...] = ()
    missing: tuple[ReplicaSlot, ...] = ()
    to_delete: tuple[Pod, ...] = ()
    surplus: tuple[Pod, ...] = ()
    leaving: tuple[Leaving, ...] = ()
    expectations: tuple[SetExpectation, ...] = ()


def plan_replicas(view: JobView) -> ReplicaPlan:
    job = view.job
    may_start = gang_restart.may_start(view)
    pods = {type: [pod for pod in view.snapshot.pods if pod.type == type.lower()] for type in job.replicas}
    if pod_revision.awaits_rendezvous(view):
        asks = etcd.awaits(view) and bool(view.snapshot.settings.etcd)
        coming = [replica_name(job, WORKER, index) for index in range(job.workers)] if asks else []
        asked = (_expectation(view, staying=(), coming=coming, leaving=()),) if asks else ()
        return ReplicaPlan(filled=tuple((type, pod.index) for type, found in pods.items() for pod in found), expectations=asked)
    framework = FRAMEWORKS[job.kind.name]
    parts = [_part(view, pods[type], type=type) for type in job.replicas]
    return ReplicaPlan(
        filled=tuple(slot for part in parts for slot in part.filled),
        missing=tuple(slot for part in parts for slot in part.missing if may_start and framework.can_create(view, slot[0])),
        to_delete=tuple(pod for part in parts for pod in part.to_delete),
        surplus=tuple(pod for part in parts for pod in part.surplus),
        leaving=tuple(entry for part in parts for entry in part.leaving),
        expectations=tuple(one for part in parts for one in part.expectations),
    )


def _part(view: JobView, pods: Sequence[Pod], *, type: str) -> ReplicaPlan:
    """Return the plan for one replica type. The rendezvous decides whether a worker can be missed."""
    if type == WORKER and (view.sees_members or view.backend is RendezvousBackend.HOSTS):
        return _members(view, pods)
    is_at_store = type == WORKER and view.backend is RendezvousBackend.STORE
    if is_at_store:
        assigned = _at_store(view, pods)
    elif type == WORKER:
        assigned = replica_slots.of_workers(view)
    else:
        assigned = slot_assignment.in_places(view.job.replicas[type].replicas, pods)
    return ReplicaPlan(
        filled=_filled(type, assigned),
        missing=tuple((type, index) for index in assigned.missing),
        to_delete=c10d_recovery.known_to_leave(view, assigned.surplus) if is_at_store else assigned.surplus,
        surplus=assigned.surplus if is_at_store else (),
        expectations=_of_counted(view, assigned) if type == WORKER and view.backend is RendezvousBackend.ETCD else (),
    )


def _at_store(view: JobView, pods: Sequence[Pod]) -> slot_assignment.SlotAssignment:
    """Return which pods to create and to delete for workers that meet at torch's store.

    Pods of a former run of the store leave, and those of the next run come under other names: `kubectl drain` evicts by name, and would
    evict pods of the same names on any node.
    """
    stale = {pod.name for pod in pod_revision.stale_pods(view)}
    present = [pod for pod in pods if pod.name not in stale]
    count = replica_slots.wanted(view, pods=present)
    assigned = slot_assignment.by_count(count, pods, leaving=stale | view.notices.keys())
    assigned = slot_assignment.without_joining(assigned, count, present, noticed=view.notices.keys())
    return replace(assigned, missing=()) if c10d_recovery.is_finishing(view) else assigned


def _of_counted(view: JobView, assigned: slot_assignment.SlotAssignment) -> tuple[SetExpectation, ...]:
    """Return the expectation for agents in an etcd that cannot be reached now."""
    coming = [replica_name(view.job, WORKER, index) for index in assigned.missing]
    return (_expectation(view, staying=assigned.present, coming=coming, leaving=()),)


def _expectation(view: JobView, *, staying: Sequence[Pod], coming: Sequence[str], leaving: Sequence[Leaving]) -> SetExpectation:
    found = expectation(view, staying=staying, coming=coming, leaving=leaving)
    is_in_etcd = view.backend is RendezvousBackend.ETCD
    return replace(found, place=etcd.place(view.job, view.snapshot.settings)) if is_in_etcd else found


def _members(view: JobView, pods: Sequence[Pod]) -> ReplicaPlan:
    """Workers whose world or hosts our server decides. Before any pod is deleted it has acknowledged that."""
    still, assigned = replica_slots.of_members(view, pods)
    out = departures.departures(view, still, surplus=assigned.surplus)
    if view.backend is RendezvousBackend.HOSTS:
        wanted = host_list.expectation(view, FRAMEWORKS[view.job.kind.name].hosts(view, out.leaving))
    else:
        coming = [replica_name(view.job, WORKER, index) for index in assigned.missing]
        wanted = _expectation(view, staying=(*assigned.present, *out.later), coming=coming, leaving=out.leaving)
    missing = tuple((WORKER, index) for index in assigned.missing)
    return ReplicaPlan(filled=_filled(WORKER, assigned), missing=missing, to_delete=out.may_go, leaving=out.leaving, expectations=(wanted,))


def _filled(type: str, assigned: slot_assignment.SlotAssignment) -> tuple[ReplicaSlot, ...]:
    return tuple((type, index) for index in (*(pod.index for pod in assigned.present), *assigned.missing))
