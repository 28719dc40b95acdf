"""Decide which jobs this controller leaves alone, and add the condition Created to the others."""

from elastic.api.job import Job, JobStatus
from elastic.api.words import ConditionType, ManagedBy
from elastic_training.controller.deciding.actions import Plan
from elastic_training.controller.deciding.events import in_words
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.conditions import reason_of, with_condition
from elastic_training.controller.facts.snapshot import Snapshot


def leave_alone(view: JobView) -> Plan | None:
    """Another controller manages the job, or the job is being deleted."""
    is_anothers = view.job.run_policy.managed_by is ManagedBy.MULTIKUEUE
    return Plan() if is_anothers or view.job.metadata.deletion_timestamp is not None else None


def accepted(job: Job, snapshot: Snapshot) -> JobStatus:
    """Return the job's status with the condition Created."""
    if job.status.condition(ConditionType.CREATED.value):
        return job.status
    message = f"{job.kind.title} {job.metadata.name} is created.{in_words(job, snapshot)}"
    return with_condition(job.status, ConditionType.CREATED, reason=reason_of(job, "Created"), message=message, now=snapshot.now)
