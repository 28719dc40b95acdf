"""Hold back the nodes of a TrainJob until its initializers have completed, and fail their job if one has failed.

Two annotations of the job say so, which the controller writes for the TrainJob. The time counts towards the job's deadline.
"""

from msgspec.structs import replace

from elastic.api.job import ElasticStatus, Job
from elastic.api.names import INITIALIZER_FAILED, WAITS_FOR
from elastic_training.controller.deciding.actions import Plan, normal
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import cleanup
from elastic_training.controller.deciding.lifecycle.conditions import reason_of


def waits(job: Job) -> bool:
    """Return whether the job may not have pods yet."""
    return bool(job.kind.role and job.metadata.annotations.get(WAITS_FOR))


def wait_for_initializers(view: JobView) -> Plan | None:
    """Return a plan that creates nothing while an initializer has not completed, or that fails the job if one has failed."""
    job, now = view.job, view.snapshot.now
    if not waits(job):
        return None
    if reason := job.metadata.annotations.get(INITIALIZER_FAILED):
        message = f"{job.kind.title} {job.metadata.name} failed because an initializer failed. {reason}"
        status = cleanup.failed(job, view.status, message=message, now=now)
        return Plan(status=status, news=(*view.news, normal(reason_of(job, "Failed"), message)))
    elastic = replace(view.status.elastic or ElasticStatus(), waits_for=job.metadata.annotations[WAITS_FOR].replace(",", ", "))
    return Plan(status=replace(view.status, elastic=elastic), news=view.news, look_again_at=view.deadline)
