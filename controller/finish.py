"""Decides whether an active job ends now, and how. Whatever ends it from outside is written down before anything else is done, for what
shows it goes with the pods.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from controller import aftermath, ending, failure, ledger, membership
from controller.actions import Plan, normal, warning
from controller.conditions import reason_of
from controller.frameworks import FRAMEWORKS
from controller.look import Look, booked, called, counted
from controller.replicas import replica_statuses
from controller.success import has_succeeded
from elastic.api.job import ElasticStatus

NO_MORE_RESTARTS = "it has reached the specified backoff limit"
NO_MORE_TIME = "it was active longer than specified deadline"


def succeeded(look: Look) -> Plan | None:
    job = look.job
    if not has_succeeded(job, look.snapshot.pods, look.counts, failed=look.failed):
        return None
    named = called(job)
    words = "successfully completed." if "/" in named else "is successfully completed."
    told = normal(reason_of(job, "Succeeded"), f"{job.kind.name} {named} {words}")
    status = ending.succeeded(job, look.status, look.counts, told, look.snapshot.now)
    return Plan(status=status, news=(*look.news, told))


def closing(look: Look) -> Plan | None:
    if not look.closed:
        return None
    if look.closed in (NO_MORE_RESTARTS, NO_MORE_TIME):
        return _ended(look, f"Job {look.job.metadata.name} has failed because {look.closed}")
    whose = "its group ended: " if look.place is membership.Place.OURS else ""
    return _ended(look, f"{look.job.kind.name} {look.job.metadata.name} is failed because {whose}{look.closed}")


def too_late(look: Look) -> Plan | None:
    if look.deadline is None or look.snapshot.now < look.deadline:
        return None
    return _noted(look, look.status.elastic or ElasticStatus(), NO_MORE_TIME)


def _ended(look: Look, message: str) -> Plan:
    """The job is stopped from outside: everything it runs goes, and the counts stay as they last were."""
    status = ending.failed(look.job, look.status, message=message, now=look.snapshot.now)
    news = (*look.news, *ending.of_group(look.snapshot), normal(reason_of(look.job, "Failed"), message))
    return Plan(tuple(ending.everything_deleted(look.snapshot)), status, news, is_final=True)


def failed(look: Look) -> Plan | None:
    """The rendezvous has given up, a pod failed for good, or the job's restarts are used up."""
    job, snapshot = look.job, look.snapshot
    if snapshot.world is not None and snapshot.world.closed:
        return _closed(look)
    fatal = [verdict for verdict in look.verdicts if verdict.fate is failure.Fate.FATAL]
    if fatal:
        return _failed_by(look, fatal)
    elastic = counted(look)
    if failure.is_exhausted(job.run_policy.backoff_limit, failure.spent(job, look.answerable, elastic.restarts)):
        return _noted(look, elastic, NO_MORE_RESTARTS)
    if look.place is membership.Place.STORE and (reason := aftermath.given_up(job, snapshot)):
        return _noted(look, elastic, reason)
    spent = "" if look.place is membership.Place.OURS else ledger.beyond_budget(job, elastic, now=snapshot.now)
    return _noted(look, elastic, spent) if spent else None


def _noted(look: Look, elastic: ElasticStatus, reason: str) -> Plan:
    """Why the job ends is written down before anything else is done: what shows it goes with the pods."""
    return Plan(status=replace(look.status, elastic=replace(elastic, closed=reason)), news=look.news)


def _closed(look: Look) -> Plan:
    """The rendezvous has given up. That is written down before anything else is done: its server may be gone by the next look."""
    known = look.status.elastic or ElasticStatus()
    return Plan(status=replace(look.status, elastic=booked(look.job, look.snapshot, known, leaving=known.leaving)), news=look.news)


def _failed_by(look: Look, fatal: Sequence[failure.Verdict]) -> Plan:
    job, counts = look.job, look.counts
    type = fatal[0].type
    words = f"{called(job)} has" if job.kind.name == "TFJob" else f"{job.metadata.name} is"
    message = f"{job.kind.name} {words} failed because {counts[type].failed} {type} replica(s) failed."
    reason = FRAMEWORKS[job.kind.name].failed_reason
    told = normal(reason_of(job, reason), message)
    if failure.by_exit_code(job, fatal[0]):
        message = f'job "{job.metadata.name}" is failing because "{type}" replica(s) failed.'
        told = warning(reason_of(job, reason), message)
    status = replace(look.status, replica_statuses=replica_statuses(job, counts))
    failed = ending.failed(job, status, message=message, now=look.snapshot.now, reason=reason)
    return Plan(status=failed, news=(*look.news, told))
