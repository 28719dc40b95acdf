"""Decide how many workers a job should have now, and which.

If an index is a rank, the places are fixed; if only the number of workers matters, any indexes will do. Workers on a cordoned node are
replaced in advance if a drain could not end otherwise.
"""

from collections.abc import Sequence
from itertools import chain

from elastic.api.book import MOST_MEMBERS, Leaving
from elastic.api.kinds import WORKER
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous import departures
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas import slot_assignment
from elastic_training.controller.facts.snapshot import Pod, Snapshot


def of_workers(view: JobView) -> slot_assignment.SlotAssignment:
    job, pods = view.job, _workers(view.snapshot)
    if view.backend is RendezvousBackend.HOSTS:
        return of_members(view, pods)[1]
    if view.has_interchangeable_workers:
        return slot_assignment.by_count_in_places(wanted(view), pods)
    assigned = slot_assignment.in_places(job.workers, pods)
    is_elastic = job.elastic is not None and job.kind.native_elastic
    return slot_assignment.without_needed(assigned, least=job.least_workers) if is_elastic else assigned


def of_members(view: JobView, pods: Sequence[Pod]) -> tuple[list[Leaving], slot_assignment.SlotAssignment]:
    """Return the workers that leave already, and the other slots, if our server decides on the world or the hosts.

    A worker that leaves is replaced at once, under another index.
    """
    known = view.status.elastic.leaving if view.status.elastic is not None else ()
    count, noticed = wanted(view), view.notices.keys()
    still = departures.still_leaving(view, known)
    short = count - len(slot_assignment.who_stay(pods, leaving={entry.member for entry in still} | noticed))
    still = departures.without_spared(view.snapshot, still, short=short)
    gone = {entry.member for entry in still} | noticed
    return still, slot_assignment.by_count(count, pods, leaving=gone)


def of_hosts(view: JobView) -> list[int]:
    """Return the indexes of the workers that should exist, including missing ones."""
    if not view.has_interchangeable_workers:
        return list(range(view.job.workers))
    assigned, here = of_workers(view), _workers(view.snapshot)
    if view.backend is RendezvousBackend.HOSTS:
        return sorted([*(pod.index for pod in assigned.present), *assigned.missing])
    going = {pod.index for pod in assigned.surplus}
    well = (pod.index for pod in slot_assignment.who_stay(here, leaving=()))
    known = dict.fromkeys(chain(well, (pod.index for pod in here), assigned.missing))
    return sorted([index for index in known if index not in going][: wanted(view)])


def wanted(view: JobView, *, pods: Sequence[Pod] | None = None) -> int:
    """Return how many workers there should be now.

    These are as many as the spec asks for, and a replacement for each of `pods` (all, if not given) that must be made before the disruption
    budget lets a drain of cordoned nodes end. The rendezvous server takes no more than MOST_MEMBERS.
    """
    job, nodes = view.job, view.snapshot.nodes
    # A worker with a notice has its replacement already.
    workers = [pod for pod in _workers(view.snapshot, pods) if pod.is_active and pod.name not in view.notices]
    cordoned = sum((node := nodes.get(pod.node)) is not None and node.is_cordoned for pod in workers)
    count = job.workers + min(cordoned, max(0, job.least_workers - (job.workers - cordoned)))
    is_served = view.backend in (RendezvousBackend.OURS, RendezvousBackend.HOSTS, RendezvousBackend.ETCD)
    return min(count, MOST_MEMBERS) if is_served else count


def _workers(snapshot: Snapshot, pods: Sequence[Pod] | None = None) -> list[Pod]:
    return [pod for pod in (snapshot.pods if pods is None else pods) if pod.type == WORKER.lower()]
