"""Decide the last status of a finished job, the clean-up of its pods, and when the job itself is deleted."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from elastic.api.job import Job, JobStatus, ReplicaStatus
from elastic.api.words import CleanPodPolicy, ConditionType
from elastic.kube.resources import PODS, SERVICES
from elastic_training.controller.deciding.actions import Action, Delete, DeleteJob, Forget, JobEvent, Plan, Update, normal
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.conditions import ENDS, holds, is_over, reason_of, with_condition
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.objects.differences import reconciled
from elastic_training.controller.deciding.rendezvous.world_status import with_last_step
from elastic_training.controller.deciding.replicas import missing_workers
from elastic_training.controller.deciding.replicas.replica_statuses import replica_statuses
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.snapshot import Pod, PodPhase, Service, Snapshot

ACTIVE_ONLY = ("HorizontalPodAutoscaler", "PodDisruptionBudget", "PodGroup", "NetworkPolicy", "Pod", "Service")
"""Kinds of objects that serve a job only while it is active."""


def succeeded(job: Job, status: JobStatus, counts: Mapping[str, Tally], news: JobEvent, now: datetime) -> JobStatus:
    """Count pods that still run as succeeded, as upstream does: the leader decides for all."""
    folded = {
        type: ReplicaStatus(succeeded=r.succeeded + r.active, failed=r.failed, selector=r.selector)
        for type, r in replica_statuses(job, counts).items()
    }
    status = replace(status, replica_statuses=folded, completion_time=now)
    return with_condition(
        missing_workers.without(status), ConditionType.SUCCEEDED, reason=reason_of(job, "Succeeded"), message=news.message, now=now
    )


def failed(job: Job, status: JobStatus, *, message: str, now: datetime, reason: str = "Failed") -> JobStatus:
    status = replace(status, completion_time=now)
    return with_condition(missing_workers.without(status), ConditionType.FAILED, reason=reason_of(job, reason), message=message, now=now)


def clean_up(view: JobView) -> Plan | None:
    """Clean up the pods of a finished job as its policy says, and delete the job when its time has come."""
    job, snapshot, policy = view.job, view.snapshot, view.job.run_policy
    if not is_over(job.status):
        return None
    actions: list[Action] = [Forget()] if job.elastic is not None else []
    actions += [*cleaned(job, snapshot), *_stopped(job, snapshot)]
    actions += reconciled(snapshot, (), managed=ACTIVE_ONLY)
    news = tuple(of_group(snapshot))
    status = with_last_step(view)
    due = None if policy.suspend else due_at(job.status, policy.ttl_seconds_after_finished)
    if due is None or due > snapshot.now:
        return Plan(tuple(actions), status if status != job.status else None, news, look_again_at=due)
    return Plan((*actions, DeleteJob()), news=news)


def due_at(status: JobStatus, ttl_s: int | None) -> datetime | None:
    """Return when a finished job is deleted; None: never."""
    end = _end(status)
    return None if ttl_s is None or end is None else after(end, ttl_s)


def _end(status: JobStatus) -> datetime | None:
    """Return when the job ended. The Training Operator leaves some failed jobs without a completion time: they would never be deleted."""
    if status.completion_time is not None:
        return status.completion_time
    ends = [c.last_transition_time for c in status.conditions if c.status == "True" and c.type in ENDS]
    return next(iter(ends), None)


def of_group(snapshot: Snapshot) -> Iterator[JobEvent]:
    """Yield an Event about the end of a gang while its pod group still exists."""
    for owned in snapshot.owned:
        if owned.kind == "PodGroup" and not owned.raw["metadata"].get("deletionTimestamp"):
            yield normal("JobTerminated", "Job has been terminated. Deleting PodGroup", about=owned.uid)


def cleaned(job: Job, snapshot: Snapshot) -> Iterator[Action]:
    """Yield the deletions at the end. A pod takes its service with it. Like upstream, keep services without a pod if pods are kept."""
    going = [pod for pod in snapshot.pods if _goes(job, pod)]
    yield from deletions(going)
    gone, there = {pod.name for pod in going}, {pod.name for pod in snapshot.pods}
    is_kept = job.run_policy.clean_pod_policy is CleanPodPolicy.NONE
    yield from services_deleted(s for s in snapshot.services if s.name in gone or not (is_kept or s.name in there))


def _goes(job: Job, pod: Pod) -> bool:
    match job.run_policy.clean_pod_policy:
        case CleanPodPolicy.ALL:
            return True
        case CleanPodPolicy.RUNNING:
            return not pod.is_over
        case CleanPodPolicy.NONE:
            # No peer is left that it could join. Pods that run when a job has failed are stopped instead, and keep their logs.
            runs_on = not (pod.is_over or _has_ended_well(pod))
            is_late = pod.phase is PodPhase.PENDING or (runs_on and _has_met(job) and holds(job.status, ConditionType.SUCCEEDED))
            return job.elastic is not None and is_late


def _has_ended_well(pod: Pod) -> bool:
    """Return whether the pod has ended well. A kubelet reports the end of containers before the end of the pod."""
    return bool(pod.containers) and all(container.exit_code == 0 for container in pod.containers)


def _has_met(job: Job) -> bool:
    """Return whether the workers have a rendezvous. Workers that are left there would wait for ever once the job has finished."""
    return job.elastic is not None and job.status.elastic is not None and bool(job.status.elastic.backend)


def _stopped(job: Job, snapshot: Snapshot) -> Iterator[Action]:
    """Workers of a failed group end without being deleted.

    A pod that has been active for too long is ended by its kubelet, is not started again, and its logs can still be read.
    """
    if not _has_met(job) or job.run_policy.clean_pod_policy is not CleanPodPolicy.NONE or holds(job.status, ConditionType.SUCCEEDED):
        return
    for pod in snapshot.pods:
        if pod.phase in (PodPhase.RUNNING, PodPhase.UNKNOWN) and not pod.is_deleting and pod.deadline_s != 1:
            yield Update(PODS, pod.name, {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}})


def deletions(pods: list[Pod], *, makes_room: bool = False) -> Iterator[Action]:
    """Yield the deletions of pods that are not being deleted yet."""
    return (Delete(PODS, pod.name, pod.uid, makes_room=makes_room) for pod in pods if not pod.is_deleting)


def services_deleted(services: Iterator[Service]) -> Iterator[Action]:
    return (Delete(SERVICES, service.name, service.uid) for service in services if not service.is_deleting)


def everything_deleted(snapshot: Snapshot) -> Iterator[Action]:
    """Pods with their services, and what serves an active job; config maps and accounts stay with the job."""
    yield from deletions(list(snapshot.pods))
    yield from services_deleted(iter(snapshot.services))
    yield from reconciled(snapshot, (), managed=ACTIVE_ONLY)
