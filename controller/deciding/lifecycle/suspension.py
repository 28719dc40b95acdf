"""Decides what suspending and resuming a job means: no pods while it is suspended, a fresh start time when it is resumed.
Kueue counts quota by `active`, so it stays above zero until the pods are gone.
"""

from datetime import datetime

from msgspec.structs import replace

from controller.deciding.actions import Forget, JobEvent, Plan, normal
from controller.deciding.job_view import JobView
from controller.deciding.lifecycle.cleanup import everything_deleted
from controller.deciding.lifecycle.conditions import holds, reason_of, with_condition, without_condition
from controller.deciding.rendezvous.backend import RendezvousBackend
from controller.deciding.rendezvous.world_status import record_restarts
from controller.deciding.replicas.replica_statuses import replica_statuses
from controller.deciding.replicas.tally import tally
from controller.watching.snapshot import Snapshot
from elastic.api.job import Job, JobStatus, ReplicaStatus
from elastic.api.words import ConditionType


def suspend(view: JobView) -> Plan | None:
    if not view.job.run_policy.suspend:
        return None
    return record_restarts(view) or _suspended(view)


def _suspended(view: JobView) -> Plan:
    job, snapshot, status, news = view.job, view.snapshot, view.status, view.news
    now, message = snapshot.now, f"{job.kind.name} {job.metadata.name} is suspended."
    if not holds(status, ConditionType.SUSPENDED):
        news = (*news, normal(reason_of(job, "Suspended"), message, about=str(now)))
    reason = reason_of(job, "Suspended")
    if status.condition(ConditionType.RUNNING.value) is not None:
        status = with_condition(status, ConditionType.RUNNING, reason=reason, message=message, now=now, is_true=False)
    status = without_condition(status, ConditionType.RESTARTING)
    status = with_condition(status, ConditionType.SUSPENDED, reason=reason, message=message, now=now)
    if status.replica_statuses:
        status = replace(status, replica_statuses=_still_there(job, snapshot))
    if status.elastic is not None:
        status = replace(status, elastic=replace(status.elastic, world_size=0, replaced=(), waits_for="", ranks=""))
    forget = () if job.elastic is None or snapshot.is_forgotten else (Forget(is_awaited=_meets_at_server(view)),)
    return Plan((*forget, *everything_deleted(snapshot)), status, news)


def wait_until_forgotten(view: JobView) -> Plan | None:
    """A job resumes once the rendezvous server has forgotten the run before. A server that was out of reach meanwhile would take the ends
    of that run's workers for losses.
    """
    if view.snapshot.is_forgotten or not holds(view.status, ConditionType.SUSPENDED) or not _meets_at_server(view):
        return None
    job, now = view.job, view.snapshot.now
    message = f"{job.kind.name} {job.metadata.name} resumes once the rendezvous server has answered that it has forgotten the run before."
    status = with_condition(view.status, ConditionType.SUSPENDED, reason=reason_of(job, "Suspended"), message=message, now=now)
    return Plan((Forget(is_awaited=True),), status, view.news)


def _meets_at_server(view: JobView) -> bool:
    is_at_server = view.backend in (RendezvousBackend.OURS, RendezvousBackend.HOSTS)
    return is_at_server and view.snapshot.settings.rendezvous is not None


def resumed(job: Job, status: JobStatus, now: datetime) -> tuple[JobStatus, tuple[JobEvent, ...]]:
    """Marks the end of a suspension, if there was one."""
    if not holds(status, ConditionType.SUSPENDED):
        return status, ()
    message = f"{job.kind.name} {job.metadata.name} is resumed."
    reason = reason_of(job, "Resumed")
    status = with_condition(status, ConditionType.SUSPENDED, reason=reason, message=message, now=now, is_true=False)
    return replace(status, start_time=now), (normal(reason, message, about=str(now)),)


def _still_there(job: Job, snapshot: Snapshot) -> dict[str, ReplicaStatus]:
    counts = tally(job, snapshot.pods)
    return {
        type: replace(r, active=counts[type].active + counts[type].leaving, succeeded=0, failed=0)
        for type, r in replica_statuses(job, counts).items()
    }
