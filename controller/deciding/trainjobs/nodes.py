"""Build the pod template of a TrainJob's nodes from the runtime's, with the TrainJob's own settings on top."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from elastic.api.job import Object
from elastic.api.kinds import OWNED, Kind
from elastic.api.trainer.runtime import ReplicatedJob
from elastic.api.trainer.train_job import ANCESTOR, ANCESTOR_TRAINER, Trainer
from elastic.kube import quantity

NODE = "node"
LAUNCHER = "launcher"
"""Job of the launcher at Kubeflow Trainer. Its container is called as that of the nodes."""
JOB_SET = "jobset.sigs.k8s.io"


def kind_of(owned: Object) -> Kind:
    """Return the kind of the job that a TrainJob owns. A list of the API server does not say it."""
    return next((kind for kind in OWNED if kind.replica_key in (owned.get("spec") or {})), OWNED[0])


def replicas(owned: Object) -> Mapping[str, Object]:
    """Return the replica specs of the job that a TrainJob owns, by type."""
    found: Mapping[str, Object] = (owned.get("spec") or {}).get(kind_of(owned).replica_key) or {}
    return found


def template(name: str, job: ReplicatedJob, trainer: Trainer, *, step: str | None = ANCESTOR_TRAINER) -> Object:
    """Return the pod template of the nodes of TrainJob `name`, or of its launcher."""
    assert job.template.spec is not None
    made: Object = json.loads(json.dumps(job.template.spec.template))
    metadata = made.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels(name, job.name, step=step)}
    made["spec"].pop("restartPolicy", None)
    for container in made["spec"]["containers"]:
        if container.get("name") == NODE:
            _override(container, trainer)
    return made


def command(job: ReplicatedJob, trainer: Trainer) -> tuple[str, ...]:
    """Return the command of the nodes, which is the TrainJob's or else the runtime's."""
    containers = job.template.spec.template["spec"]["containers"] if job.template.spec is not None else ()
    own = next((container.get("command") or () for container in containers if container.get("name") == NODE), ())
    return trainer.command if trainer.command is not None else tuple(own)


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


def labels(name: str, role: str, *, step: str | None) -> dict[str, str]:
    """Return the labels that a pod of this role has in a JobSet of this name, which has one Job for each role."""
    of_step = {ANCESTOR: step} if step is not None else {}
    return of_step | {
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
