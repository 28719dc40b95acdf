"""Decides on the disruption budget of an elastic job: a drain may take workers as long as minReplicas of them stay ready."""

from collections.abc import Iterator

from controller.ownership import owned_metadata
from controller.settings import Settings
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_TYPE, job_labels


def disruption_budget(job: Job, settings: Settings) -> Iterator[Object]:
    if job.elastic is None or WORKER not in job.replicas or settings.strict:
        return
    labels = job_labels(job.kind, job.metadata.name) | {REPLICA_TYPE: WORKER.lower()}
    yield {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(job, job.metadata.name),
        "spec": {"minAvailable": job.least_workers, "selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }
