"""Decides whether a job runs and whether it has succeeded: by its head where it has one, by its workers otherwise."""

from collections.abc import Collection, Mapping, Sequence

from controller.deciding.replicas.tally import Tally
from controller.frameworks import FRAMEWORKS
from controller.watching.snapshot import Phase, Pod
from elastic.api.job import Job
from elastic.api.kinds import WORKER


def is_running(job: Job, counts: Mapping[str, Tally]) -> bool:
    decides = FRAMEWORKS[job.kind.name].leader_type(job) or WORKER
    return decides in counts and counts[decides].active > 0


def has_succeeded(job: Job, pods: Sequence[Pod], counts: Mapping[str, Tally], *, failed: Collection[str] = ()) -> bool:
    """`failed` are the uids of pods that have failed for good."""
    framework = FRAMEWORKS[job.kind.name]
    own = framework.has_succeeded(job, pods, failed)
    if own is not None:
        return own
    head = framework.leader_type(job)
    decides = head or WORKER
    if decides not in job.replicas:
        return False
    done = counts[decides].succeeded
    if head is None and job.elastic is not None and job.kind.native_elastic:
        return done > 0 and _nobody_trains(pods)
    return 0 < job.replicas[decides].replicas <= done


def _nobody_trains(pods: Sequence[Pod]) -> bool:
    """An elastic job has ended when all that remain have: a worker that never came, or was lost at the end, is not waited for."""
    workers = [pod for pod in pods if pod.type == WORKER.lower()]
    return not any(pod.phase in (Phase.RUNNING, Phase.UNKNOWN) for pod in workers)
