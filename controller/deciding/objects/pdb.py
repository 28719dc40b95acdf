"""Decides on the disruption budget of an elastic job: a drain may take workers as long as minReplicas of them stay ready."""

from collections.abc import Iterator

from controller.deciding import compat
from controller.deciding.job_view import JobView
from controller.deciding.objects.ownership import owned_metadata
from elastic.api.job import Object
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_TYPE, job_labels


def disruption_budget(view: JobView) -> Iterator[Object]:
    job = view.job
    if job.elastic is None or WORKER not in job.replicas or not compat.has_disruption_budgets(view.snapshot.settings):
        return
    least = job.least_workers
    if not view.has_interchangeable_workers:
        # Nobody can take a worker's place before it goes: without one to spare a drain would wait for ever.
        least = min(least, max(0, job.workers - 1))
    labels = job_labels(job.kind, job.metadata.name) | {REPLICA_TYPE: WORKER.lower()}
    yield {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(job, job.metadata.name),
        "spec": {"minAvailable": least, "selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }
