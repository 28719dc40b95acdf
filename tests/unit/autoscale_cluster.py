"""Describe nodes, pods and jobs to the autoscaler's decisions."""

from __future__ import annotations

from typing import Any

from autoscale_jobs import measured

from elastic.api.scaling import (
    PolicyName,
    ScalingPolicy,
)
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen
from elastic_training.autoscale.deciding.jobs import JobState, ScaledJob
from elastic_training.autoscale.deciding.signals import Bounds, Memory
from elastic_training.autoscale.deciding.training import Mark, Training
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.watching.projections import node_seen, shape_of

WORKER = {"spec": {"containers": [{"name": "pytorch", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}


def node(name: str, cpus: int, **labels: str) -> NodeSeen:
    return node_seen(
        {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"allocatable": {"cpu": str(cpus), "pods": "110"}}}
    )


def pod(name: str, *, on: str = "", owner: str = "", index: int = -1, priority: int = 0, since: float | None = None) -> PodSeen:
    return PodSeen(
        key=("default", name),
        node=on,
        shape=shape_of(WORKER),
        owner=owner,
        index=index,
        is_worker=owner != "",
        priority=priority,
        unschedulable_since=since,
    )


def state(name: str, replicas: int, *, rates: dict[int, float] | None = None, least: int = 1, most: int = 8, **policy: Any) -> JobState:
    seen = ScaledJob(
        key=JobName("PyTorchJob", "default", name),
        uid=f"uid-{name}",
        policy=ScalingPolicy(**policy),
        bounds=Bounds(least, most),
        replicas=replicas,
        shape=shape_of(WORKER),
    )
    progress = TrainingProgress(job=seen.uid, generation=1, phase="running", size=replicas, step=5, highest=5)
    training = Training(progress=progress, heard_at=0.0, last=Mark(0.0, 5.0, "samples", 5, (progress.generation, progress.size)))
    return JobState(seen=seen, training=training, memory=Memory(sizes=measured(rates or {})))


def running(*states: JobState, on: str = "n") -> list[PodSeen]:
    return [pod(f"{one.seen.key.name}-{i}", on=on, owner=one.seen.uid, index=i) for one in states for i in range(one.seen.replicas)]


LINEAR = {n: 100.0 * n for n in range(1, 9)}


SPONGE = {"policy": PolicyName.CAPACITY}
