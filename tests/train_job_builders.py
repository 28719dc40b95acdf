"""Builders for tests of TrainJobs: a TrainJob, a runtime, and the job that follows from them. Each takes only the differences."""

import copy
from collections.abc import Sequence
from typing import Any

from elastic.api.job import Object
from elastic.api.trainer.shipped import objects
from elastic.api.trainer.train_job import ANCESTOR
from elastic_training.controller.deciding.trainjobs.lowering import lower


def runtime(
    policy: Object | None = None,
    *,
    annotations: dict[str, str] | None = None,
    pod: Object | None = None,
    initializers: Sequence[Object] = (),
    **job: Any,
) -> Object:
    """Return the runtime torch-distributed, or one with this policy. `job` are fields of the nodes' job, `pod` of their pod's spec.

    The nodes depend on the initializers.
    """
    made = copy.deepcopy(next(item for item in objects() if item["metadata"]["name"] == "torch-distributed"))
    if policy is not None:
        made["spec"]["mlPolicy"] = policy
    made["metadata"]["annotations"] = annotations or {}
    spec = made["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec.update(job)
    spec["template"]["spec"].update(pod or {})
    jobs = made["spec"]["template"]["spec"]["replicatedJobs"]
    if initializers:
        jobs[0]["dependsOn"] = [{"name": one["name"], "status": "Complete"} for one in initializers]
        jobs[:0] = initializers
    return made


def initializer(name: str = "dataset-initializer", *, pod: Object | None = None, **spec: Any) -> Object:
    """Return a job of a runtime, as Kubeflow's runtimes have it. `spec` are fields of the job, `pod` of its pod's spec."""
    container = {"name": name, "image": "any", "command": ["load"], "env": [{"name": "STORAGE_URI", "value": "hf://default"}]}
    container["volumeMounts"] = [{"name": "initializer", "mountPath": "/workspace"}]
    claim = {"claimName": "shared"}
    template = {"spec": {"containers": [container], "volumes": [{"name": "initializer", "persistentVolumeClaim": claim}]} | (pod or {})}
    return {"name": name, "template": {"metadata": {"labels": {ANCESTOR: name}}, "spec": {"template": template, **spec}}}


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
    return all_owned(job, found)[0] | {"status": status or {}}


def all_owned(job: Object, found: Object | None = None) -> list[Object]:
    """Return the jobs of this TrainJob: first that of the nodes, then those of its initializers."""
    made, problems = lower(job, found or runtime())
    assert problems == []
    return [one | {"metadata": one["metadata"] | {"uid": f"p-{n}", "resourceVersion": "9"}, "status": {}} for n, one in enumerate(made, 1)]
