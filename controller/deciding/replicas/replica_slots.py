"""Decides which workers a job should have now where no rendezvous server of ours tells them to go: fixed places where an index is a rank,
any so many where only their number matters. Those on a cordoned node are replaced first, where a drain could not end otherwise.
"""

from itertools import chain

from controller.deciding.lifecycle.disruption import to_be_moved
from controller.deciding.rendezvous.membership import RendezvousBackend, backend_in_use
from controller.deciding.replicas import slot_assignment
from controller.watching.snapshot import Pod, Snapshot
from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.api.words import RdzvBackend

FOREIGN = (RdzvBackend.ETCD, RdzvBackend.ETCD_V2)


def are_counted(job: Job, snapshot: Snapshot) -> bool:
    """Do any so many workers do? Not where one of them is what the others meet at, nor where all must be as upstream has it."""
    if job.elastic is None or not job.kind.native_elastic or snapshot.settings.strict:
        return False
    return backend_in_use(job, snapshot) is not RendezvousBackend.NONE or job.kind.name == "MPIJob" or job.elastic.rdzv_backend in FOREIGN


def of_workers(job: Job, snapshot: Snapshot) -> slot_assignment.SlotAssignment:
    if are_counted(job, snapshot):
        return slot_assignment.by_count_in_places(_wanted(job, snapshot), _workers(snapshot))
    assigned = slot_assignment.in_places(job.workers, _workers(snapshot))
    return (
        slot_assignment.without_needed(assigned, least=job.least_workers)
        if job.elastic is not None and job.kind.native_elastic
        else assigned
    )


def of_hosts(job: Job, snapshot: Snapshot) -> list[int]:
    """The indexes of the workers that should be, also while one of them is away: for whoever must know them beforehand."""
    if not are_counted(job, snapshot):
        return list(range(job.workers))
    assigned, here = of_workers(job, snapshot), _workers(snapshot)
    going = {pod.index for pod in assigned.surplus}
    well = (pod.index for pod in slot_assignment.who_stay(here, leaving=()))
    known = dict.fromkeys(chain(well, (pod.index for pod in here), assigned.missing))
    return sorted([index for index in known if index not in going][: _wanted(job, snapshot)])


def _wanted(job: Job, snapshot: Snapshot) -> int:
    return job.workers + to_be_moved(job, snapshot)


def _workers(snapshot: Snapshot) -> list[Pod]:
    return [pod for pod in snapshot.pods if pod.type == WORKER.lower()]
