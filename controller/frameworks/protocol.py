"""What differs between the kinds: which variables a replica gets, whose end is the job's end, and what else the job needs.

The defaults here are right for most kinds. A framework knows nothing of reconciles, budgets or other objects' lives.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.deciding.job_view import JobView
from controller.deciding.rendezvous.backend import RendezvousBackend
from controller.deciding.replicas.tally import Tally
from controller.deciding.settings import Settings
from controller.watching.snapshot import Pod
from elastic.api.book import Leaving
from elastic.api.job import Job, Object
from elastic.membership.hosts import Host


@dataclass(frozen=True, slots=True)
class Replica:
    """One place in the job: its canonical type and index."""

    type: str
    index: int


class Framework:
    """The common case: workers that end together, nothing of their own beside pods and services."""

    failed_reason: str = "Failed"
    """What follows the kind in the reason of a job that failed by its pods."""
    template_reason: str = "SetPodTemplate"
    """What upstream's reasons of Events about a field of the pod template begin with."""
    has_selector: bool = False
    """Upstream writes a selector into each of the job's replicaStatuses."""
    has_upstream_autoscaler: bool = False
    """The Training Operator makes a HorizontalPodAutoscaler for this kind."""

    def backend(self, job: Job, settings: Settings) -> RendezvousBackend:
        """Through what elastic workers of this kind find each other."""
        return RendezvousBackend.NONE

    def has_interchangeable_workers(self, job: Job) -> bool:
        """Return whether elastic workers are interchangeable although they do not meet at our rendezvous."""
        return False

    def needs_gang_restart(self, job: Job) -> bool:
        """Return whether processes wait for ever for a lost peer, even if that peer is started again."""
        return False

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        """Completes the replica's plain pod, which it may change, with environment, init containers and volumes."""
        raise NotImplementedError

    def leader_type(self, job: Job) -> str | None:
        """The type whose success is the job's success and whose running is the job's running; None: the workers together."""
        return None

    def called(self, job: Job) -> str:
        """How upstream's messages call the job: by its name where a leader decides, with its namespace where the workers do."""
        name = job.metadata.name
        return name if self.leader_type(job) is not None else f"{job.metadata.namespace}/{name}"

    def failed_subject(self, job: Job) -> str:
        """The name and verb in upstream's message that the job failed."""
        return f"{job.metadata.name} is"

    def has_succeeded(self, job: Job, pods: Sequence[Pod], failed: Collection[str]) -> bool | None:
        """A rule of its own for success; None: the common rule for the head or the workers.

        `failed` are the uids of pods that have failed for good.
        """
        return None

    def can_create(self, view: JobView, type: str) -> bool:
        """May replicas of this type be made now? False: they wait for others."""
        return True

    def tolerates(self, job: Job, type: str) -> bool:
        """Return whether the job goes on if a replica of this type fails for good and others can finish the work."""
        return False

    def displayed_counts(self, job: Job, counts: Mapping[str, Tally]) -> Mapping[str, Tally]:
        """The counts as the job's status shows them."""
        return counts

    def hosts(self, view: JobView, leaving: Sequence[Leaving]) -> Sequence[Host]:
        """Where a launcher starts the workers on listed hosts: every pod that may be one, or has workers."""
        return ()

    def objects(self, view: JobView) -> Sequence[Object]:
        """Other objects the job needs while it is active, in the order they should be made."""
        return ()


def total(job: Job) -> int:
    return sum(spec.replicas for spec in job.replicas.values())
