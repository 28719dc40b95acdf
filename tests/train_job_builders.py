"""Builders for tests of TrainJobs: a TrainJob, a runtime, and the job that follows from them. Each takes only the differences."""

import copy
from typing import Any

from controller.deciding.trainjobs.lowering import lower
from elastic.api.job import Object
from elastic.api.trainer.shipped import objects


def runtime(policy: Object | None = None, *, annotations: dict[str, str] | None = None, pod: Object | None = None, **job: Any) -> Object:
    """Return the runtime torch-distributed, or one with this policy. `job` are fields of the nodes' job, `pod` of their pod's spec."""
    made = copy.deepcopy(next(item for item in objects() if item["metadata"]["name"] == "torch-distributed"))
    if policy is not None:
        made["spec"]["mlPolicy"] = policy
    made["metadata"]["annotations"] = annotations or {}
    spec = made["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec.update(job)
    spec["template"]["spec"].update(pod or {})
    return made


def train_job(
    *, annotations: dict[str, str] | None = None, status: Object | None = None, trainer: Object | None = None, **spec: Any
) -> Object:
    given = {"command": ["torchrun", "train.py"], "numNodes": 2} | (trainer or {})
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "fit", "namespace": "team", "uid": "t-1", "resourceVersion": "7", "annotations": annotations or {}},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": given, **spec},
        "status": status or {},
    }


def owned(job: Object, found: Object | None = None, *, status: Object | None = None) -> Object:
    """Return the job of this TrainJob as the API server has it."""
    made, problems = lower(job, found or runtime())
    assert problems == []
    (only,) = made
    return only | {"metadata": only["metadata"] | {"uid": "p-1", "resourceVersion": "9"}, "status": status or {}}
