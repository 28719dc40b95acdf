"""Hold the input of every decision about one job: the job, the snapshot of its cluster, and the facts that follow from both.

`derivation` makes a view before the first decision; a decision reads it and never changes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from elastic.api.job import Job, JobStatus
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.actions import JobEvent
from elastic_training.controller.deciding.lifecycle.disruption import Notice
from elastic_training.controller.deciding.lifecycle.verdicts import Loss, Verdict
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.snapshot import Pod, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    job: Job
    """Its `status` is the newest that was decided: the stored status, or a newer one that is held back."""
    snapshot: Snapshot
    status: JobStatus
    """The stored status with what this plan has added so far."""
    news: tuple[JobEvent, ...] = ()
    """The Events that this plan has so far."""
    backend: RendezvousBackend
    restarts_as_a_whole: bool
    """The loss of one replica restarts all of them."""
    has_interchangeable_workers: bool
    """Only the number of workers matters, not their indexes."""
    notices: Mapping[str, Notice]
    """By pod name, why and by when a running pod must go, or may have to."""
    answerable: tuple[Pod, ...]
    """The pods whose end matters to the job: not those of another group, nor those that came after the work was done."""
    verdicts: tuple[Verdict, ...]
    """Meaning of each failed pod; if one loss restarts all pods, only of the pods that decide it."""
    losses: tuple[Loss, ...] = ()
    """The losses that can explain how other pods ended, if the controller decides that for this job."""
    counted: frozenset[str]
    """The entries of the stored `status.elastic.counted`."""
    failed: frozenset[str]
    """The uids of pods that have failed for good."""
    counts: Mapping[str, Tally]
    """The pods by replica type, as the job's status displays them."""

    @property
    def sees_members(self) -> bool:
        """Whether the members of the job's world are known or soon will be. If an etcd is out of reach, pods are counted instead."""
        world = self.snapshot.world
        is_unreached = world is not None and world.phase == WorldPhase.UNREACHED
        return self.backend is RendezvousBackend.OURS or (self.backend is RendezvousBackend.ETCD and not is_unreached)

    @property
    def closed(self) -> str:
        """Why the job ends, if the status already says so."""
        return self.status.elastic.closed if self.status.elastic is not None else ""

    @property
    def deadline(self) -> datetime | None:
        seconds, start = self.job.run_policy.active_deadline_seconds, self.status.start_time
        return None if seconds is None or start is None else after(start, seconds)
