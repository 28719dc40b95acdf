"""What a round of planning starts from, once it is clear that the job is active: the job, the look at its cluster, and what follows
from both that several decisions need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.deciding.actions import JobEvent
from controller.deciding.lifecycle import failure, gang_restart, restart_accounting
from controller.deciding.rendezvous import membership
from controller.deciding.replicas import pod_revision
from controller.deciding.replicas.tally import Tally, tally
from controller.frameworks import FRAMEWORKS
from controller.watching.snapshot import Pod, Snapshot
from elastic.api.job import ElasticStatus, Job, JobStatus, Leaving


@dataclass(frozen=True, slots=True)
class JobView:
    """What the rest of a round starts from."""

    job: Job
    snapshot: Snapshot
    status: JobStatus
    news: tuple[JobEvent, ...]
    backend: membership.RendezvousBackend
    answerable: tuple[Pod, ...]
    """The pods whose end says something."""
    verdicts: tuple[failure.Verdict, ...]
    failed: frozenset[str]
    """The uids of pods that have failed for good."""

    @property
    def closed(self) -> str:
        """Why the job ends, where that is written down."""
        return self.status.elastic.closed if self.status.elastic is not None else ""

    @property
    def counts(self) -> Mapping[str, Tally]:
        return FRAMEWORKS[self.job.kind.name].displayed_counts(self.job, tally(self.job, self.snapshot.pods))

    @property
    def deadline(self) -> datetime | None:
        seconds, start = self.job.run_policy.active_deadline_seconds, self.status.start_time
        return None if seconds is None or start is None else start + timedelta(seconds=seconds)


def derive(job: Job, snapshot: Snapshot, status: JobStatus, news: tuple[JobEvent, ...]) -> JobView:
    orphans = {pod.uid for pod in pod_revision.orphans(job, snapshot)}
    answerable = tuple(pod for pod in snapshot.pods if pod.uid not in orphans)
    verdicts = failure.judge(job, answerable)
    failed = frozenset(verdict.pod.uid for verdict in verdicts if verdict.fate is not failure.Fate.AGAIN)
    if gang_restart.restarts_as_a_whole(job, snapshot):
        verdicts = gang_restart.decisive(verdicts)
    return JobView(job, snapshot, status, news, membership.backend_in_use(job, snapshot), answerable, tuple(verdicts), failed)


def booked(job: Job, snapshot: Snapshot, known: ElasticStatus, *, leaving: Sequence[Leaving]) -> ElasticStatus:
    """The status with all that the rendezvous server tells of."""
    return restart_accounting.dated(job, known=known, new=membership.with_world(known, snapshot, leaving), now=snapshot.now)


def counted(view: JobView) -> ElasticStatus:
    """The status with the ends of pods that are new in this look."""
    is_ours = view.backend is membership.RendezvousBackend.OURS
    verdicts = [v for v in view.verdicts if not is_ours or membership.is_accounted(view.job, v.pod, view.snapshot)]
    status = failure.counted(view.job, view.status, verdicts, view.snapshot.pods, is_ours=is_ours)
    return restart_accounting.dated(view.job, known=view.status.elastic or ElasticStatus(), new=status, now=view.snapshot.now)


def called(job: Job) -> str:
    """How upstream's messages call the job: by its name where a head decides, with its namespace where the workers do."""
    name = job.metadata.name
    return name if FRAMEWORKS[job.kind.name].leader_type(job) and job.kind.name != "TFJob" else f"{job.metadata.namespace}/{name}"
