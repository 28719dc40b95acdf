"""Decide which changes of a job's status can wait a moment before they are written.

The wait saves patches and Events when several pods change at nearly the same time. Only informational changes wait: that the job is
accepted, that it begins to run, and the counts of its pods. If the process dies meanwhile, nothing is lost: the next one sees the same
pods and writes the same status a moment later.
"""

from dataclasses import dataclass, replace

import msgspec

from elastic.api.job import Job, JobStatus
from elastic.api.words import ConditionType
from elastic_training.controller.deciding.actions import Delete, Plan

PATIENCE_S = 1.0
"""The most seconds that a decided status waits. A job costs at most one such patch in this time."""


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """A status that has been decided and not been written: over which one, of which job, and until when that is right."""

    uid: str
    stored: JobStatus
    status: JobStatus
    until: float


def believed(held: PendingStatus | None, *, uid: str, stored: JobStatus) -> JobStatus:
    """Return the status that the next decision starts from: the one held back, unless something else has been stored since."""
    return held.status if held is not None and (held.uid, held.stored) == (uid, stored) else stored


def held_back(held: PendingStatus | None, job: Job, planned: Plan, *, stored: JobStatus, now: float) -> PendingStatus | None:
    """Return the status that is held back from now on; None if the plan's status must be written, or says nothing new."""
    status = planned.status
    if status is None or status == stored or not can_wait(job, stored, status):
        return None
    # Events about deletions can be written only now.
    if any(isinstance(action, Delete) for action in planned.actions):
        return None
    until = held.until if held is not None and held.uid == job.metadata.uid else now + PATIENCE_S
    return PendingStatus(job.metadata.uid, stored, status, until) if now < until else None


def can_wait(job: Job, stored: JobStatus, new: JobStatus) -> bool:
    """Return whether the changes are informational.

    For an elastic job they are not: autoscalers read the counts, we read the world, and `departures` deletes a worker only after the status
    says that it leaves.
    """
    count = len(stored.conditions)
    if job.elastic is not None or new.conditions[:count] != stored.conditions or stored.start_time not in (None, new.start_time):
        return False
    said = {ConditionType(condition.type) for condition in new.conditions[count:]}
    # Nothing is left to wait for if the whole job runs.
    waits = {ConditionType.CREATED} if _all_run(job, new) else {ConditionType.CREATED, ConditionType.RUNNING}
    others = msgspec.structs.replace(
        new, conditions=stored.conditions, start_time=stored.start_time, replica_statuses=stored.replica_statuses
    )
    return said <= waits and others == stored


def without_what_waits(planned: Plan) -> Plan:
    """Return the plan without its status. Events about its actions are written at once; the next reconcile finds the others again."""
    return replace(planned, status=None, news=planned.news if planned.actions else ())


def _all_run(job: Job, status: JobStatus) -> bool:
    counts = status.replica_statuses
    return all(type in counts and counts[type].active + counts[type].succeeded >= spec.replicas for type, spec in job.replicas.items())
