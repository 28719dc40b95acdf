"""Decides what becomes of a job at its end and afterwards: the last status, the clean-up of its pods, and when the job itself goes."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from controller.actions import Action, Delete, DeleteJob, Forget, News, Plan
from controller.conditions import reason_of, with_condition
from controller.objects import reconciled
from controller.replicas import Tally, replica_statuses
from controller.snapshot import Pod, Service, Snapshot
from elastic.api.job import Job, JobStatus, ReplicaStatus
from elastic.api.words import CleanPodPolicy, ConditionType
from elastic.kube.resources import PODS, SERVICES

ACTIVE_ONLY = ("HorizontalPodAutoscaler", "PodDisruptionBudget", "PodGroup", "NetworkPolicy", "Pod", "Service")
"""Kinds of objects that serve a job only while it is active."""


def succeeded(job: Job, status: JobStatus, counts: Mapping[str, Tally], news: News, now: datetime) -> JobStatus:
    """Whatever still runs counts as succeeded, as upstream has it: the head has spoken for all."""
    folded = {
        type: ReplicaStatus(succeeded=r.succeeded + r.active, failed=r.failed, selector=r.selector)
        for type, r in replica_statuses(job, counts).items()
    }
    status = replace(status, replica_statuses=folded, completion_time=now)
    return with_condition(status, ConditionType.SUCCEEDED, reason=reason_of(job, "Succeeded"), message=news.message, now=now)


def failed(job: Job, status: JobStatus, *, message: str, now: datetime, reason: str = "Failed") -> JobStatus:
    status = replace(status, completion_time=now)
    return with_condition(status, ConditionType.FAILED, reason=reason_of(job, reason), message=message, now=now)


def over(job: Job, snapshot: Snapshot) -> Plan:
    """A job that is over: clean up as its policy says, and delete the job when its time has come."""
    policy = job.run_policy
    actions: list[Action] = [Forget()] if job.elastic is not None else []
    actions += cleaned(snapshot, policy.clean_pod_policy)
    actions += reconciled(snapshot, (), managed=ACTIVE_ONLY)
    ttl, end = policy.ttl_seconds_after_finished, job.status.completion_time
    if ttl is None or end is None or policy.suspend:
        return Plan(tuple(actions))
    due = end + timedelta(seconds=ttl)
    if due > snapshot.now:
        return Plan(tuple(actions), look_again_at=due)
    return Plan((*actions, DeleteJob()))


def cleaned(snapshot: Snapshot, policy: CleanPodPolicy) -> Iterator[Action]:
    """None keeps all; Running parts with what is not finished; All with everything. A pod takes its service with it."""
    if policy is CleanPodPolicy.NONE:
        return
    going = [pod for pod in snapshot.pods if policy is CleanPodPolicy.ALL or not pod.is_over]
    yield from deletions(going)
    kept = {pod.name for pod in snapshot.pods} - {pod.name for pod in going}
    yield from services_deleted(service for service in snapshot.services if service.name not in kept)


def deletions(pods: list[Pod]) -> Iterator[Action]:
    """What is being deleted already needs no second word."""
    return (Delete(PODS, pod.name, pod.uid) for pod in pods if not pod.is_deleting)


def services_deleted(services: Iterator[Service]) -> Iterator[Action]:
    return (Delete(SERVICES, service.name, service.uid) for service in services if not service.is_deleting)


def everything_deleted(snapshot: Snapshot) -> Iterator[Action]:
    """Pods with their services, and what serves an active job; config maps and accounts stay with the job."""
    yield from deletions(list(snapshot.pods))
    yield from services_deleted(iter(snapshot.services))
    yield from reconciled(snapshot, (), managed=ACTIVE_ONLY)
