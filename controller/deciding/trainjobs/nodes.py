"""Build the pod template of a TrainJob's nodes from the runtime's, with the TrainJob's own settings on top."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from elastic.api.job import Object
from elastic.api.trainer.runtime import ReplicatedJob
from elastic.api.trainer.train_job import ANCESTOR, ANCESTOR_TRAINER, Trainer
from elastic.kube import quantity

NODE = "node"
JOB_SET = "jobset.sigs.k8s.io"


def template(name: str, job: ReplicatedJob, trainer: Trainer) -> Object:
    """Return the pod template of the nodes of TrainJob `name`."""
    assert job.template.spec is not None
    made: Object = json.loads(json.dumps(job.template.spec.template))
    metadata = made.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels(name, NODE, step=ANCESTOR_TRAINER)}
    made["spec"].pop("restartPolicy", None)
    for container in made["spec"]["containers"]:
        if container.get("name") == NODE:
            _override(container, trainer)
    return made


def _override(container: Object, trainer: Trainer) -> None:
    for key, value in (("image", trainer.image), ("command", trainer.command), ("args", trainer.args)):
        if value is not None:
            container[key] = list(value) if isinstance(value, tuple) else value
    if trainer.env:
        container["env"] = merged(container.get("env") or (), trainer.env)
    if trainer.resources_per_node is not None:
        container["resources"] = _resources(container.get("resources") or {}, trainer.resources_per_node)


def merged(under: Iterable[Object], over: Iterable[Object]) -> list[Object]:
    """Return both lists as one. An entry of `over` takes the place of the entry with its name."""
    found = {str(entry.get("name")): entry for entry in under}
    return list((found | {str(entry.get("name")): entry for entry in over}).values())


def _resources(under: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    made: Object = {key: {**(under.get(key) or {}), **(over.get(key) or {})} for key in ("limits", "requests")}
    made["claims"] = merged(under.get("claims") or (), over.get("claims") or ())
    return {key: value for key, value in made.items() if value}


def labels(name: str, role: str, *, step: str) -> dict[str, str]:
    """Return the labels that a pod of this role has in a JobSet of this name, which has one Job for each role."""
    return {
        ANCESTOR: step,
        "batch.kubernetes.io/job-name": f"{name}-{role}-0",
        f"{JOB_SET}/jobset-name": name,
        f"{JOB_SET}/replicatedjob-name": role,
        f"{JOB_SET}/replicatedjob-replicas": "1",
        f"{JOB_SET}/job-index": "0",
        f"{JOB_SET}/restart-attempt": "0",
    }


def processes(made: Object, trainer: Trainer) -> str:
    """Return how many processes torchrun starts on each node: by the TrainJob, else one for each GPU, else one for each CPU."""
    if trainer.num_proc_per_node is not None:
        return str(trainer.num_proc_per_node)
    if gpus(made):
        return "auto"
    cpus = next((amount for found in _resources_of(made) if (amount := quantity.parse(found.get("cpu", 0)))), 0)
    return str(max(1, math.ceil(cpus)))


def gpus(made: Object) -> int:
    """Return the number of GPUs of a node with this pod template."""
    counts = (quantity.parse(amount) for found in _resources_of(made) for name, amount in found.items() if "gpu" in name.lower())
    return int(next((count for count in counts if count >= 1), 0))


def _resources_of(made: Object) -> list[Mapping[str, Any]]:
    resources = next(c for c in made["spec"]["containers"] if c.get("name") == NODE).get("resources") or {}
    return [resources.get(key) or {} for key in ("requests", "limits")]
