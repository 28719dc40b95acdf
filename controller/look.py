"""What a round of planning starts from, once it is clear that the job is active: the job, the look at its cluster, and what follows
from both that several decisions need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller import failure, group, ledger, membership, regroup
from controller.actions import News
from controller.frameworks import FRAMEWORKS
from controller.replicas import Tally, tally
from controller.snapshot import Pod, Snapshot
from elastic.api.job import ElasticStatus, Job, JobStatus, Leaving


@dataclass(frozen=True, slots=True)
class Look:
    """What the rest of a round starts from."""

    job: Job
    snapshot: Snapshot
    status: JobStatus
    news: tuple[News, ...]
    place: membership.Place
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
        return FRAMEWORKS[self.job.kind.name].shown(self.job, tally(self.job, self.snapshot.pods))

    @property
    def deadline(self) -> datetime | None:
        seconds, start = self.job.run_policy.active_deadline_seconds, self.status.start_time
        return None if seconds is None or start is None else start + timedelta(seconds=seconds)


def look_at(job: Job, snapshot: Snapshot, status: JobStatus, news: tuple[News, ...]) -> Look:
    orphans = {pod.uid for pod in group.orphans(job, snapshot)}
    answerable = tuple(pod for pod in snapshot.pods if pod.uid not in orphans)
    verdicts = failure.judge(job, answerable)
    failed = frozenset(verdict.pod.uid for verdict in verdicts if verdict.fate is not failure.Fate.AGAIN)
    if regroup.is_whole(job, snapshot):
        verdicts = regroup.decisive(verdicts)
    return Look(job, snapshot, status, news, membership.place(job, snapshot), answerable, tuple(verdicts), failed)


def booked(job: Job, snapshot: Snapshot, known: ElasticStatus, *, leaving: Sequence[Leaving]) -> ElasticStatus:
    """The status with all that the rendezvous server tells of."""
    return ledger.dated(job, known=known, new=membership.shown(known, snapshot, leaving), now=snapshot.now)


def counted(look: Look) -> ElasticStatus:
    """The status with the ends of pods that are new in this look."""
    is_ours = look.place is membership.Place.OURS
    verdicts = [v for v in look.verdicts if not is_ours or membership.is_accounted(look.job, v.pod, look.snapshot)]
    status = failure.counted(look.status, verdicts, look.snapshot.pods, is_ours=is_ours)
    return ledger.dated(look.job, known=look.status.elastic or ElasticStatus(), new=status, now=look.snapshot.now)


def called(job: Job) -> str:
    """How upstream's messages call the job: by its name where a head decides, with its namespace where the workers do."""
    name = job.metadata.name
    return name if FRAMEWORKS[job.kind.name].head(job) and job.kind.name != "TFJob" else f"{job.metadata.namespace}/{name}"
