"""Decide where the workers of a PyTorchJob meet: at the rendezvous server, in an etcd, at a c10d store, or as its user arranged."""

from enum import Enum

from elastic.api.job import Job
from elastic.api.rendezvous_choice import wanted_backend
from elastic.api.words import ConditionType, RdzvBackend
from elastic_training.controller.deciding.lifecycle.conditions import holds
from elastic_training.controller.facts.settings import Settings


class RendezvousBackend(Enum):
    """The way in which the workers of a job find each other."""

    NONE = ""
    """Workers need no rendezvous, or the user arranged one; pods get upstream's variables only."""
    OURS = RdzvBackend.ELASTIC.value
    """The rendezvous server."""
    STORE = RdzvBackend.C10D.value
    """Torch's c10d, at a store pod of the job's own."""
    HOSTS = "hosts"
    """Workers are started by the job's launcher, on the hosts that the rendezvous server lists."""
    ETCD = RdzvBackend.ETCD.value
    """In the user's or the installation's etcd, through our library's backend elastic-etcd. If the controller reaches it, it takes part."""

    @property
    def needs_library(self) -> bool:
        """Tell whether the workers need elastic_worker."""
        return self in (RendezvousBackend.OURS, RendezvousBackend.ETCD)


def backend_in_use(job: Job, settings: Settings) -> RendezvousBackend:
    """Return the backend of this job.

    A running job keeps status.elastic.backend; a new one gets ours unless its spec chose another, or its pods cannot load our library.
    A job of the Training Operator that runs has no such field, and goes on meeting at its worker 0. Once it is suspended, it counts as new.
    A job that needs an etcd keeps this backend even if there is no etcd: its pods wait for one.
    """
    chosen = wanted_backend(job)
    if chosen is None:
        return RendezvousBackend.NONE
    wanted = RendezvousBackend(chosen.value)
    if job.status.start_time is not None:
        begun = job.status.elastic.backend if job.status.elastic is not None else ""
        if begun != "":
            return RendezvousBackend.STORE if begun == RendezvousBackend.STORE.value else wanted
        if not holds(job.status, ConditionType.SUSPENDED):
            return RendezvousBackend.NONE
    asks_for_c10d = job.elastic is not None and job.elastic.rdzv_backend is RdzvBackend.C10D
    if settings.rendezvous is None and not asks_for_c10d:
        return RendezvousBackend.NONE
    return wanted
