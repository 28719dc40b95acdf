"""Reduce raw jobs, pods and nodes to the facts that decisions need.

Pure. An unreadable object raises ValueError, and the cache keeps the object's former state.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

from elastic.api import SpecError, parse
from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.api.scaling import ANNOTATION, from_text
from elastic.api.template import default_container
from elastic.api.words import ConditionType, ManagedBy
from elastic.client.summary import is_number
from elastic.kube.placement import candidate, requests
from elastic.kube.resources import Object
from elastic.signals.table import QUEUE
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen, Shape
from elastic_training.autoscale.deciding.jobs import ScaledJob, SizeOwner, Unscaled
from elastic_training.autoscale.deciding.signals import Bounds
from elastic_training.autoscale.figures import JobName

SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Node labels by which clouds mark capacity that they may take back."""
GROUPS = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
"""Node labels that name a group of nodes, the first of them that a node has."""
QUEUED = f"the job keeps its number while the label {QUEUE} is set: Kueue suspends an admitted job whose number of workers changes"
CHOOSING = ("nodeSelector", "affinity", "tolerations")


def job_seen(raw: Object) -> ScaledJob | Unscaled | None:
    """Return the job; None if it cannot be read: the controller reports its mistakes. A job without a scaling policy may need room."""
    try:
        job, _ = parse(raw, stored=True)
    except SpecError:
        return None
    if job.elastic is None or job.elastic.scaling_policy is None:
        return Unscaled(job.metadata.uid, job.bounds[0], job.metadata.namespace) if _is_active(job) else None
    policy, (least, most) = job.elastic.scaling_policy, job.bounds
    metadata, worker = job.metadata, job.replicas[WORKER]
    refusals = [refused.message for refused in (job.status.elastic.refused if job.status.elastic else ()) if not refused.node]
    return ScaledJob(
        key=JobName(job.kind.name, metadata.namespace, metadata.name),
        uid=metadata.uid,
        policy=policy,
        bounds=Bounds(least, most, tuple(job.elastic.allowed_sizes), job.elastic.size_step or 1),
        replicas=job.workers,
        shape=shape_of({"spec": worker.template.get("spec") or {}}),
        version=metadata.resource_version,
        labels=metadata.labels,
        is_active=_is_active(job),
        owners=size_owners(raw, (job.kind.replica_key, WORKER, "replicas")),
        record=from_text(metadata.annotations.get(ANNOTATION)),
        progress=job.elastic.progress,
        fixed=QUEUED if metadata.labels.get(QUEUE) else "",
        container=default_container(worker.template, job.kind).get("name"),
        refused=refusals[0][:120] if refusals else "",
    )


def _is_active(job: Job) -> bool:
    is_over = any((found := job.status.condition(type.value)) is not None and found.status == "True" for type in OVER)
    is_ours = job.run_policy.managed_by in (None, ManagedBy.TRAINING_OPERATOR)
    return is_ours and not (is_over or job.run_policy.suspend or job.metadata.deletion_timestamp is not None)


OVER = (ConditionType.SUCCEEDED, ConditionType.FAILED)


def size_owners(raw: Object, path: Iterable[str]) -> tuple[SizeOwner, ...]:
    """Return the managers of a field of spec, as the API server keeps them."""
    found = []
    for entry in raw["metadata"].get("managedFields") or ():
        node: Any = (entry.get("fieldsV1") or {}).get("f:spec")
        for name in path:
            node = node.get(f"f:{name}") if isinstance(node, dict) else None
        if node is not None:
            found.append(SizeOwner(str(entry.get("manager", "")), entry.get("subresource") == "scale", str(entry.get("time", ""))))
    return tuple(found)


def pod_seen(raw: Object) -> PodSeen | None:
    """Return the pod; None if it has ended and holds no room."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    labels = metadata.get("labels") or {}
    index, owner = labels.get(REPLICA_INDEX, ""), controller_uid(metadata)
    is_worker = labels.get(REPLICA_TYPE) == WORKER.lower()
    return PodSeen(
        key=(metadata.get("namespace", ""), metadata["name"]),
        node=spec.get("nodeName") or "",
        shape=shape_of(raw),
        priority=int(spec.get("priority") or 0),
        owner=owner,
        index=int(index) if is_number(index) else -1,
        is_worker=is_worker,
        labels=labels if is_worker and owner else {},
        unschedulable_since=_unschedulable_since(status.get("conditions") or ()),
        is_leaving="deletionTimestamp" in metadata,
        uid=str(metadata.get("uid", "")),
        address=str(status.get("podIP") or ""),
        is_running=status.get("phase") == "Running",
    )


def _unschedulable_since(conditions: Iterable[Mapping[str, Any]]) -> float | None:
    for found in conditions:
        if found.get("type") == "PodScheduled" and found.get("status") == "False" and found.get("reason") == "Unschedulable":
            return datetime.fromisoformat(str(found.get("lastTransitionTime")).replace("Z", "+00:00")).timestamp()
    return None


def shape_of(pod: Object) -> Shape:
    """Return a pod's needs of a node. Equal needs share one value, because a job has many workers."""
    spec = pod.get("spec") or {}
    needs = {name: spec[name] for name in CHOOSING if spec.get(name)}
    asked = {name: float(amount) for name, amount in requests({"spec": {"containers": [], **spec}}).items()}
    if any(amount < 0 for amount in asked.values()):
        # No server runs such a pod, and a template with one would make room for all jobs out of nothing.
        raise ValueError(f"a pod asks for less than nothing: {asked}")
    name = hashlib.sha256(json.dumps([asked, needs], sort_keys=True).encode()).hexdigest()[:32]
    return _shapes.setdefault(name, Shape(name, asked, {"spec": needs}))


_shapes: WeakValueDictionary[str, Shape] = WeakValueDictionary()
"""Shapes of the jobs and pods that exist."""


def node_seen(raw: Object) -> NodeSeen:
    found = candidate(raw, ())
    return NodeSeen(
        candidate=found,
        offers={name: float(amount) for name, amount in found.offers.items()},
        is_spot=any(found.labels.get(name) == value for name, value in SPOT.items()),
        group=next((found.labels[name] for name in GROUPS if found.labels.get(name)), ""),
    )
