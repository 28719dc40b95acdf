"""Decide whether an active job ends now, and how.

A cause from outside is written down before anything else happens, because its evidence goes with the pods.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from elastic.api.job import ElasticStatus
from elastic_training.controller.deciding.actions import Plan, normal, warning
from elastic_training.controller.deciding.events import of_early_end
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import cleanup, collateral, failure, first_error, restart_accounting
from elastic_training.controller.deciding.lifecycle.conditions import reason_of
from elastic_training.controller.deciding.lifecycle.success import has_succeeded
from elastic_training.controller.deciding.lifecycle.verdicts import Fate, Verdict
from elastic_training.controller.deciding.rendezvous import c10d_recovery, etcd, world_status
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas.replica_statuses import replica_statuses
from elastic_training.controller.frameworks import FRAMEWORKS

NO_MORE_RESTARTS = "it has reached the specified backoff limit"
NO_MORE_TIME = "it was active longer than specified deadline"


def succeed(view: JobView) -> Plan | None:
    job = view.job
    if not has_succeeded(view):
        return None
    named = FRAMEWORKS[job.kind.name].called(job)
    words = "successfully completed." if "/" in named else "is successfully completed."
    event = normal(reason_of(job, "Succeeded"), f"{job.kind.title} {named} {words}")
    status = world_status.with_early_end(view, world_status.with_last_step(view))
    status = cleanup.succeeded(job, status, view.counts, event, view.snapshot.now)
    known = view.status.elastic or ElasticStatus()
    return Plan(status=status, news=(*view.news, *of_early_end(job, known=known, new=status.elastic or known), event))


def finalize_failure(view: JobView) -> Plan | None:
    if not view.closed:
        return None
    if view.closed in (NO_MORE_RESTARTS, NO_MORE_TIME):
        quoted = first_error.of_job(view) if view.closed == NO_MORE_RESTARTS else ""
        return _ended(view, f"Job {view.job.metadata.name} has failed because {view.closed}{'.' if quoted else ''}{quoted}")
    message = _of_rendezvous(view) if view.backend.needs_library else _of_group(view)
    status = cleanup.failed(view.job, world_status.with_last_step(view), message=message, now=view.snapshot.now)
    return Plan(status=status, news=(*view.news, normal(reason_of(view.job, "Failed"), message)))


def _of_rendezvous(view: JobView) -> str:
    """Return why the rendezvous closed the group, with the cause first."""
    quoted = first_error.of_usage(view, view.closed).strip()
    closed = f"{view.closed[:1].upper()}{view.closed[1:].rstrip('.')}." if quoted else view.closed
    return f"{quoted} {closed}".lstrip()


def _of_group(view: JobView) -> str:
    quoted = first_error.of_usage(view, view.closed) or first_error.of_job(view)
    return f"{view.job.kind.title} {view.job.metadata.name} is failed because {view.closed}{'.' if quoted else ''}{quoted}"


def deadline_exceeded(view: JobView) -> Plan | None:
    if view.deadline is None or view.snapshot.now < view.deadline:
        return None
    return _noted(view, view.status.elastic or ElasticStatus(), NO_MORE_TIME)


def _ended(view: JobView, message: str) -> Plan:
    """Stop the job from outside: delete everything that it runs, as upstream does, and keep its last counts."""
    status = cleanup.failed(view.job, world_status.with_last_step(view), message=message, now=view.snapshot.now)
    news = (*view.news, *cleanup.of_group(view.snapshot), normal(reason_of(view.job, "Failed"), message))
    return Plan(tuple(cleanup.everything_deleted(view.snapshot)), status, news, is_written_last=True)


def fail(view: JobView) -> Plan | None:
    """Fail the job if the rendezvous closed its group, a pod failed for good, or its restarts are used up."""
    failed = _failed(view)
    return c10d_recovery.once_certain(view, failed) if failed is not None and view.backend is RendezvousBackend.STORE else failed


def _failed(view: JobView) -> Plan | None:
    job, snapshot = view.job, view.snapshot
    if snapshot.world is not None and snapshot.world.closed:
        return _closed(view)
    fatal = [verdict for verdict in view.verdicts if verdict.fate is Fate.FATAL]
    if fatal:
        return collateral.once_certain(view, _failed_by(view, fatal), fatal)
    elastic = failure.with_ends_counted(view)
    if failure.is_exhausted(job.run_policy.backoff_limit, failure.spent(job, view.answerable, elastic)):
        return collateral.once_exhausted(view, _noted(view, elastic, NO_MORE_RESTARTS))
    if view.backend is RendezvousBackend.STORE and (reason := c10d_recovery.given_up(view)):
        return _noted(view, elastic, reason)
    if reason := etcd.closed(view):
        return _noted(view, elastic, reason)
    if view.backend is RendezvousBackend.OURS:
        return None  # its server holds the job to its budget
    spent = restart_accounting.beyond_budget(job, elastic, now=snapshot.now)
    if not spent and _counts_charges(view):
        spent = restart_accounting.beyond_max_restarts(job, elastic, now=snapshot.now)
    return _noted(view, elastic, spent) if spent else None


def _counts_charges(view: JobView) -> bool:
    """Return whether the controller enforces maxRestarts. With c10d, each agent enforces it for itself, unless it cannot start."""
    is_unstarted = view.backend is RendezvousBackend.STORE and first_error.of_usage(view, "") != ""
    return is_unstarted or (view.backend is RendezvousBackend.ETCD and view.sees_members)


def _noted(view: JobView, elastic: ElasticStatus, reason: str) -> Plan:
    """Return a plan that only stores why the job ends. That comes before anything else, because the evidence goes with the pods."""
    elastic = restart_accounting.without_restarts_since(view.status.elastic or ElasticStatus(), elastic)
    return Plan(status=replace(view.status, elastic=replace(elastic, closed=reason)), news=view.news)


def _closed(view: JobView) -> Plan:
    """Write down first that the rendezvous closed the group: the server may be gone by the next plan."""
    known = view.status.elastic or ElasticStatus()
    return Plan(status=replace(view.status, elastic=world_status.recorded(view, known, leaving=known.leaving)), news=view.news)


def _failed_by(view: JobView, fatal: Sequence[Verdict]) -> Plan:
    job, counts = view.job, view.counts
    type = fatal[0].type
    framework, quoted = FRAMEWORKS[job.kind.name], first_error.of_job(view)
    message = f"{job.kind.title} {framework.failed_subject(job)} failed because {counts[type].failed} {type} replica(s) failed.{quoted}"
    reason = framework.failed_reason
    event = normal(reason_of(job, reason), message)
    if failure.by_exit_code(job, fatal[0]):
        message = f'job "{job.metadata.name}" is failing because "{type}" replica(s) failed.{quoted}'
        event = warning(reason_of(job, reason), message)
    status = replace(world_status.with_last_step(view), replica_statuses=replica_statuses(job, counts))
    failed = cleanup.failed(job, status, message=message, now=view.snapshot.now, reason=reason)
    return Plan(status=failed, news=(*view.news, event))
