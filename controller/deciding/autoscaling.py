"""Copy the autoscaler's last decision from the job's annotation into its status, where a user looks for it."""

from msgspec.structs import replace

from elastic.api.job import ElasticStatus, Job
from elastic.api.scaling import ANNOTATION, from_text


def recorded(job: Job, known: ElasticStatus) -> ElasticStatus:
    """Return the status with the decision, or without one if the job has no scaling policy or the annotation cannot be read."""
    has_policy = job.elastic is not None and job.elastic.scaling_policy is not None
    record = from_text(job.metadata.annotations.get(ANNOTATION)) if has_policy else None
    return replace(known, autoscaler=record.decision if record is not None else None)
