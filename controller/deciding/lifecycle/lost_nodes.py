"""Decide which pods are force-deleted: those being deleted on a lost node, because no kubelet will ever report that they have gone.

An index, a name and a quota stay taken until a pod is gone, so the job would wait for ever.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from elastic.api.job import Job
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Delete, Plan, warning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.facts.snapshot import Pod, Snapshot, pod_from

PATIENCE_S = 60.0
"""Seconds after a pod's grace. By then its node has been silent for minutes: it counts as unreachable after 40 to 50 s, and the cluster
deletes its pods only after the toleration, 300 s unless the template says otherwise."""


def force_delete_on_lost_nodes(view: JobView, planned: Plan) -> Plan:
    """Return the plan with forced deletions of pods on lost nodes whose time has passed, or with a look at that time."""
    job, snapshot = view.job, view.snapshot
    due = [(pod, at) for pod in _all_pods(snapshot) if (at := _given_up_at(pod, snapshot)) is not None]
    if not due:
        return planned
    given_up = [pod for pod, at in due if at <= snapshot.now]
    later = [at for _, at in due if at > snapshot.now]
    events = [warning("PodGivenUp", _words(job, pod), about=pod.uid) for pod in given_up]
    return replace(
        planned,
        actions=(*planned.actions, *(Delete(PODS, pod.name, pod.uid, grace_s=0) for pod in given_up)),
        news=(*planned.news, *events),
        look_again_at=min(filter(None, (planned.look_again_at, *later)), default=None),
    )


def _all_pods(snapshot: Snapshot) -> Iterator[Pod]:
    yield from snapshot.pods
    yield from snapshot.left_behind
    yield from (pod_from(owned.raw) for owned in snapshot.owned if owned.kind == "Pod")


def _given_up_at(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return when the pod may be deleted by force.

    None if its node is not lost, or if it was deleted by force already and only a finalizer keeps it.
    """
    if not pod.is_deleting or pod.is_forced or pod.gone_by is None or not pod.node or not snapshot.sees_nodes:
        return None
    node = snapshot.nodes.get(pod.node)
    if node is not None and not node.is_lost:
        return None
    return after(pod.gone_by, PATIENCE_S)


def _words(job: Job, pod: Pod) -> str:
    name = f"{job.kind.title} {job.metadata.name}"
    return f"{name} force-deletes pod {pod.name}: its node {pod.node} is lost, and its grace period ended {PATIENCE_S:.0f} s ago"
