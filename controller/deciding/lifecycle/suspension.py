"""Decide what a suspended job has and does: no pods while it is suspended, and a new start time when it is resumed.

Kueue counts quota by `active`, so it stays above zero until the pods are gone.
"""

import dataclasses
from datetime import datetime

from msgspec.structs import replace

from elastic.api.job import ElasticStatus, Job, JobStatus, ReplicaStatus
from elastic.api.words import ConditionType
from elastic_training.controller.deciding.actions import Forget, JobEvent, Plan, normal
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import disruption_log
from elastic_training.controller.deciding.lifecycle.cleanup import everything_deleted
from elastic_training.controller.deciding.lifecycle.conditions import holds, reason_of, with_condition, without_condition
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.etcd import place
from elastic_training.controller.deciding.rendezvous.world_status import record_restarts, with_last_step
from elastic_training.controller.deciding.replicas.replica_statuses import replica_statuses
from elastic_training.controller.deciding.replicas.tally import tally
from elastic_training.controller.facts.snapshot import Snapshot

ETCD_FORGETS_S = 60
"""Seconds for which a resumed job waits for its etcd."""


def suspend(view: JobView) -> Plan | None:
    """Suspend the job. Say so in its status before a pod goes.

    If the controller died after it had deleted some of the pods, and the user resumed the job, its successor would count them as lost.
    """
    if not view.job.run_policy.suspend:
        return None
    view = dataclasses.replace(view, status=with_last_step(view))  # the rendezvous forgets the job, and then it would be lost
    planned = _suspended(view)
    if not holds(view.status, ConditionType.SUSPENDED):
        planned = Plan(status=planned.status, news=planned.news)
    return record_restarts(view) or planned


def _suspended(view: JobView) -> Plan:
    job, snapshot, status, news = view.job, view.snapshot, view.status, view.news
    now, message = snapshot.now, f"{job.kind.title} {job.metadata.name} is suspended."
    if not holds(status, ConditionType.SUSPENDED):
        news = (*news, normal(reason_of(job, "Suspended"), message, about=str(now)))
    reason = reason_of(job, "Suspended")
    if status.condition(ConditionType.RUNNING.value) is not None:
        status = with_condition(status, ConditionType.RUNNING, reason=reason, message=message, now=now, is_true=False)
    status = without_condition(status, ConditionType.RESTARTING)
    status = with_condition(status, ConditionType.SUSPENDED, reason=reason, message=message, now=now)
    if status.replica_statuses:
        status = replace(status, replica_statuses=_still_there(job, snapshot))
    known = status.elastic or ElasticStatus()
    elastic = disruption_log.suspended(view, known)
    if status.elastic is not None or elastic != known:
        status = replace(
            status,
            elastic=replace(
                elastic, world_size=0, replaced=(), waits_for="", ranks="", hang=None, stragglers=(), failed_saves=(), ended_early=""
            ),
        )
    news = (*news, *disruption_log.events(job, known=known, new=elastic))
    forget = () if job.elastic is None or snapshot.is_forgotten else (_forget(view),)
    return Plan((*forget, *everything_deleted(snapshot)), status, news)


def wait_until_forgotten(view: JobView) -> Plan | None:
    """Let a job resume only once the rendezvous server, or the etcd where it meets, has forgotten the run before.

    A server that was out of reach meanwhile would take the ends of the former run's workers for losses. The controller cannot reach every
    etcd, so the job does not wait for an etcd for long.
    """
    forget = _forget(view)
    if view.snapshot.is_forgotten or not holds(view.status, ConditionType.SUSPENDED) or not forget.is_awaited:
        return None
    job, now = view.job, view.snapshot.now
    where = "the rendezvous server has answered that it has" if forget.place is None else "the etcd where it meets has"
    message = f"{job.kind.title} {job.metadata.name} resumes once {where} forgotten the run before."
    status = with_condition(view.status, ConditionType.SUSPENDED, reason=reason_of(job, "Suspended"), message=message, now=now)
    if forget.place is None:
        return Plan((forget,), status, view.news)
    said = status.condition(ConditionType.SUSPENDED.value)
    until = after(said.last_update_time or now, ETCD_FORGETS_S) if said is not None else now
    return Plan((forget,), status, view.news, look_again_at=until) if now < until and view.sees_members else None


def _forget(view: JobView) -> Forget:
    """Return the message that makes server or etcd forget the job's run, and whether the next run waits for that."""
    if view.backend is RendezvousBackend.ETCD:
        return Forget(is_awaited=True, place=place(view.job, view.snapshot.settings))
    is_at_server = view.backend in (RendezvousBackend.OURS, RendezvousBackend.HOSTS)
    return Forget(is_awaited=is_at_server and view.snapshot.settings.rendezvous is not None)


def resumed(job: Job, status: JobStatus, now: datetime) -> tuple[JobStatus, tuple[JobEvent, ...]]:
    """Mark the end of a suspension, if there was one."""
    if not holds(status, ConditionType.SUSPENDED):
        return status, ()
    message = f"{job.kind.title} {job.metadata.name} is resumed."
    reason = reason_of(job, "Resumed")
    status = with_condition(status, ConditionType.SUSPENDED, reason=reason, message=message, now=now, is_true=False)
    return replace(status, start_time=now), (normal(reason, message, about=str(now)),)


def _still_there(job: Job, snapshot: Snapshot) -> dict[str, ReplicaStatus]:
    counts = tally(job, snapshot.pods)
    return {
        type: replace(r, active=counts[type].active + counts[type].leaving, succeeded=0, failed=0)
        for type, r in replica_statuses(job, counts).items()
    }
