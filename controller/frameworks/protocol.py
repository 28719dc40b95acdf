"""Describe how the kinds differ: in a replica's variables, in the replica whose end is the job's end, and in the job's other needs.

The defaults here are right for most kinds. A framework decides nothing about reconciles, budgets or when other objects are deleted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from elastic.api.book import Leaving
from elastic.api.job import Job, Object
from elastic.membership.hosts import Host
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Pod


@dataclass(frozen=True, slots=True)
class Replica:
    """One place in the job: its canonical type and index."""

    type: str
    index: int


class Framework:
    """The common case: workers that end together, with no objects of their own other than pods and services."""

    failed_reason: str = "Failed"
    """Word that follows the kind in the reason of a job that failed by its pods."""
    template_reason: str = "SetPodTemplate"
    """Beginning of upstream's reasons of Events about a field of the pod template."""
    has_selector: bool = False
    """Upstream writes a selector into each of the job's replicaStatuses."""

    def backend(self, job: Job, settings: Settings) -> RendezvousBackend:
        """Return how elastic workers of this kind find each other."""
        return RendezvousBackend.NONE

    def has_interchangeable_workers(self, job: Job) -> bool:
        """Return whether elastic workers are interchangeable although they do not meet at our rendezvous."""
        return False

    def needs_gang_restart(self, job: Job) -> bool:
        """Return whether processes wait for a lost peer for ever, even after that peer has started again."""
        return False

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        """Return the replica's pod with environment, init containers and volumes. The given pod may be changed."""
        raise NotImplementedError

    def leader_type(self, job: Job) -> str | None:
        """Return the type whose success and running are the job's; None: the workers together."""
        return None

    def called(self, job: Job) -> str:
        """Return the job's name in upstream's messages: the plain name if a leader decides the job's end, else namespace and name."""
        name = job.metadata.name
        return name if self.leader_type(job) is not None else f"{job.metadata.namespace}/{name}"

    def failed_subject(self, job: Job) -> str:
        """Return the name and verb in upstream's message that the job failed."""
        return f"{job.metadata.name} is"

    def has_succeeded(self, job: Job, pods: Sequence[Pod], failed: Collection[str]) -> bool | None:
        """Return whether the job has succeeded by the framework's own rule; None if the common rule for leader or workers applies.

        `failed` are the uids of pods that have failed for good.
        """
        return None

    def can_create(self, view: JobView, type: str) -> bool:
        """Return whether replicas of this type may be created now. If not, they wait for others."""
        return True

    def tolerates(self, job: Job, type: str) -> bool:
        """Return whether the job goes on after a replica of this type has failed for good, as long as others can finish the work."""
        return False

    def displayed_counts(self, job: Job, counts: Mapping[str, Tally]) -> Mapping[str, Tally]:
        """Return the counts as the job's status shows them."""
        return counts

    def hosts(self, view: JobView, leaving: Sequence[Leaving]) -> Sequence[Host]:
        """Return every pod that may be a host or has workers, if a launcher starts the workers on listed hosts."""
        return ()

    def objects(self, view: JobView) -> Sequence[Object]:
        """Other objects the job needs while it is active, in the order they should be made."""
        return ()


def total(job: Job) -> int:
    return sum(spec.replicas for spec in job.replicas.values())
