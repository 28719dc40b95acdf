"""Decides where the workers of a PyTorchJob meet: at the rendezvous server, at a c10d store of the job, or as its user has arranged."""

from enum import Enum

from controller.deciding import compat
from controller.deciding.settings import Settings
from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.api.template import default_container
from elastic.api.words import RdzvBackend, WorkerLibrary
from rendezvous.delivery import obstacle, rendezvous_flags


class RendezvousBackend(Enum):
    """Through what the workers of a job find each other."""

    NONE = ""
    """Workers need no rendezvous, or the user arranged one; pods get upstream's variables only."""
    OURS = RdzvBackend.ELASTIC.value
    """At the rendezvous server."""
    STORE = RdzvBackend.C10D.value
    """Torch's c10d, at a store pod of the job's own."""
    HOSTS = "hosts"
    """Workers are started by the job's launcher, on the hosts that the rendezvous server lists."""


def backend_in_use(job: Job, settings: Settings) -> RendezvousBackend:
    """The backend of this job. A running job keeps status.elastic.backend; a new one gets ours unless its spec chose another, or its pods
    cannot load our library.
    """
    wanted = _wanted_backend(job)
    if wanted is RendezvousBackend.NONE:
        return wanted
    if job.status.start_time is not None:
        begun = job.status.elastic.backend if job.status.elastic is not None else ""
        if begun == "":
            return RendezvousBackend.NONE
        return RendezvousBackend.STORE if begun == RendezvousBackend.STORE.value else wanted
    asks_for_c10d = job.elastic is not None and job.elastic.rdzv_backend is RdzvBackend.C10D
    if not compat.has_our_rendezvous(settings) or (settings.rendezvous is None and not asks_for_c10d):
        return RendezvousBackend.NONE
    return wanted


def _wanted_backend(job: Job) -> RendezvousBackend:
    """The backend that follows from the job's spec alone; NONE where the user chose how workers meet."""
    policy = job.elastic
    if policy is None or [*job.replicas] != [WORKER]:
        return RendezvousBackend.NONE
    if policy.rdzv_host or policy.standalone or policy.rdzv_backend in (RdzvBackend.ETCD, RdzvBackend.ETCD_V2):
        return RendezvousBackend.NONE
    if chosen_by_command(job):
        return RendezvousBackend.NONE
    return RendezvousBackend.STORE if policy.rdzv_backend is RdzvBackend.C10D or obstacle_to(job) else RendezvousBackend.OURS


def chosen_by_command(job: Job) -> bool:
    """Flags in the container's own command win over any environment, so nothing is put beside them."""
    return bool(rendezvous_flags(default_container(job.replicas[WORKER].template, job.kind)))


def obstacle_to(job: Job) -> str:
    """Why our library cannot be in the workers; empty where it can."""
    assert job.elastic is not None
    if job.elastic.worker_library is WorkerLibrary.NONE:
        return "elasticPolicy.workerLibrary is None"
    return obstacle(job.replicas[WORKER].template, container=job.kind.container)
