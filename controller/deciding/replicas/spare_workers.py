"""Decide which workers have annotations by which autoscalers of nodes know that they may evict them.

Spare workers are those above minReplicas, which are the first to go at a scale-in. Annotations in the user's template stay. Annotations are
written only when all workers work, and if they change.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from elastic.api.book import Leaving
from elastic.api.job import Object
from elastic.api.kinds import WORKER
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Update
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.replicas import slot_assignment
from elastic_training.controller.facts.snapshot import DELETION_COST, SAFE_TO_EVICT, Pod

SPARE: dict[str, str] = {SAFE_TO_EVICT: "true", DELETION_COST: "-100"}
"""cluster-autoscaler does not remove a node whose pods have local storage unless they allow it. Karpenter and ReplicaSets read the cost."""


def marks(view: JobView, *, going: Sequence[Pod], leaving: Sequence[Leaving]) -> Iterator[Update]:
    """Yield the changes of annotations of pods that stay."""
    if not _is_marked(view):
        return
    gone = {pod.uid for pod in going} | {entry.uid for entry in leaving}
    workers = [pod for pod in view.snapshot.pods if pod.type == WORKER.lower() and not pod.is_deleting and pod.uid not in gone]
    if len(workers) != view.job.workers or not all(pod.is_active and pod.is_ready for pod in workers):
        return
    for place, pod in enumerate(sorted(workers, key=slot_assignment.place)):
        change = _change(view, pod, is_spare=place >= view.job.least_workers)
        if change:
            yield Update(PODS, pod.name, {"metadata": {"uid": pod.uid, "annotations": change}})


def marked(view: JobView, pod: Object, index: int) -> Object:
    """Return a new worker with its annotations, as far as its index says whether it will be spare."""
    if not _is_marked(view) or index < view.job.least_workers:
        return pod
    annotations = pod["metadata"].get("annotations") or {}
    return pod | {"metadata": pod["metadata"] | {"annotations": SPARE | annotations}}


def _is_marked(view: JobView) -> bool:
    return view.has_interchangeable_workers and WORKER in view.job.replicas


def _change(view: JobView, pod: Pod, *, is_spare: bool) -> dict[str, Any]:
    users = (view.job.replicas[WORKER].template.get("metadata") or {}).get("annotations") or {}
    wanted = {key: value if is_spare else None for key, value in SPARE.items() if key not in users}
    there = dict(pod.marks)
    return {key: value for key, value in wanted.items() if there.get(key) != value}
