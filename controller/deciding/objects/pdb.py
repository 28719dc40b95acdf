"""Decide which disruption budgets an elastic job has.

A drain, or the scheduler for more important pods, may evict workers as long as minReplicas of them stay ready. The launcher may be evicted
only if its node must be drained.
"""

from collections.abc import Iterator

from elastic.api.job import Object
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_TYPE, job_labels
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.frameworks import FRAMEWORKS


def disruption_budgets(view: JobView) -> Iterator[Object]:
    job = view.job
    if job.elastic is None or WORKER not in job.replicas:
        return
    least = job.least_workers
    if not view.has_interchangeable_workers:
        # No replacement can start before a worker goes, so a budget that spares no worker would hold up a drain for ever.
        least = min(least, max(0, job.workers - 1))
    yield _budget(view, job.metadata.name, WORKER, least)
    leader = FRAMEWORKS[job.kind.name].leader_type(job)
    # No other launcher can start before this one goes either, so its budget must not hold up a drain of its node.
    if leader is not None and view.has_interchangeable_workers and not _is_to_move(view, leader):
        yield _budget(view, f"{job.metadata.name}-{leader.lower()}", leader, job.replicas[leader].replicas)


def _is_to_move(view: JobView, type: str) -> bool:
    return any(
        pod.type == type.lower() and (_is_on_cordoned_node(view, pod.node) or _must_leave(view, pod.name)) for pod in view.snapshot.pods
    )


def _is_on_cordoned_node(view: JobView, name: str) -> bool:
    node = view.snapshot.nodes.get(name)
    return node is not None and node.is_cordoned


def _must_leave(view: JobView, pod: str) -> bool:
    notice = view.notices.get(pod)
    return notice is not None and notice.meaning is not Meaning.PREPARE


def _budget(view: JobView, name: str, type: str, least: int) -> Object:
    job = view.job
    labels = job_labels(job.kind, job.metadata.name) | {REPLICA_TYPE: type.lower()}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned_metadata(job, name),
        "spec": {"minAvailable": least, "selector": {"matchLabels": labels}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }
