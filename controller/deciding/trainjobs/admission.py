"""Find what is wrong with a TrainJob or a runtime before it is stored, so that its author learns of it at once.

A TrainJob is refused if the controller could not run it. A runtime is refused for the mistakes for which Kubeflow Trainer's webhook refuses
it. If the controller could not run the runtime's TrainJobs, a warning says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api.errors import Path, Problem
from elastic.api.job import Object
from elastic.api.kinds import INITIALIZERS
from elastic.api.trainer import train_job as api
from elastic_training.controller.deciding.trainjobs import nodes
from elastic_training.controller.deciding.trainjobs.lowering import lower, missing, runtime_key, without_mpi
from elastic_training.controller.deciding.trainjobs.patches import FIELD

ANCESTORS = {api.ANCESTOR_TRAINER: nodes.NODE} | {step: step for step in INITIALIZERS}
"""Container that a job of a runtime must have, by its label."""
JOBS: Path = ("spec", "template", "spec", "replicatedJobs")
SUPPORT, DEPRECATED = "trainer.kubeflow.org/support", "deprecated"
UNCHECKED = ("trainer.kubeflow.org/webhook-validation", "disabled")
"""Label with which Kubeflow Trainer's webhook lets a runtime pass unseen."""


@dataclass(frozen=True, slots=True)
class RuntimeSight:
    """The runtime that a TrainJob names. Without an object, it does not exist, or nobody knows."""

    object: Object | None = None
    is_known: bool = False
    gang_scheduler: str | None = None
    """The scheduler for which the controller makes pod groups; None if that is not known."""
    serves_mpi: bool = True
    """Whether the controller serves MPIJobs."""


def of_train_job(train_job: Object, runtime: RuntimeSight) -> list[Problem]:
    """Return the problems for which the controller would not carry out this TrainJob."""
    metadata = {"name": "x", "uid": ""} | train_job["metadata"]
    made, problems = lower({**train_job, "metadata": metadata}, runtime.object, gang_scheduler=runtime.gang_scheduler)
    problems += without_mpi(made) if not runtime.serves_mpi else ()
    if runtime.is_known:
        return problems
    kind, _, name = runtime_key({**train_job, "metadata": metadata})
    return [problem for problem in problems if problem != missing(kind, name)]


def of_update(train_job: Object, before: Object) -> list[Problem]:
    """Return the changes that a TrainJob may not make now. Upstream's API holds everything else fixed."""
    if _patches(train_job) == _patches(before) or _is_suspended(train_job) or _is_suspended(before):
        return []
    message = "runtimePatches have changed while the TrainJob runs; change them while spec.suspend is true, or together with it"
    return [Problem(FIELD, message)]


def _patches(train_job: Object) -> list[Any]:
    """Return the patches without their times, which upstream's API server keeps."""
    found = (train_job.get("spec") or {}).get("runtimePatches")
    patches = [patch for patch in found if isinstance(patch, dict)] if isinstance(found, list) else []
    return [{key: value for key, value in patch.items() if key != "time"} for patch in patches]


def _is_suspended(train_job: Object) -> bool:
    return bool((train_job.get("spec") or {}).get("suspend"))


def of_runtime(runtime: Object) -> list[Problem]:
    """Return the mistakes of a runtime."""
    key, value = UNCHECKED
    if _labels(runtime).get(key) == value:
        return []
    return [problem for at, job in enumerate(_jobs(runtime)) for problem in _of_job(job, (*JOBS, at))]


def _of_job(job: Object, at: Path) -> Iterator[Problem]:
    template = _dict(job.get("template"))
    step = _labels(template).get(api.ANCESTOR)
    if not isinstance(step, str) or step not in ANCESTORS:
        return
    replicas = job.get("replicas", 1)
    if replicas != 1:
        yield Problem((*at, "replicas"), f"replicas is {replicas}, but a job with the label {api.ANCESTOR}: {step} has one; write 1")
    containers = _dict(_dict(_dict(template.get("spec")).get("template")).get("spec")).get("containers")
    names = [str(each.get("name")) for each in containers if isinstance(each, dict)] if isinstance(containers, list) else []
    if (needed := ANCESTORS[step]) not in names:
        found = f"the containers are {', '.join(names)}" if names else "there is no container"
        message = f"{found}, but a job with the label {api.ANCESTOR}: {step} needs a container {needed}; name one so"
        yield Problem((*at, "template", "spec", "template", "spec", "containers"), message)


def warnings_of_runtime(kind: str, runtime: Object) -> list[Problem]:
    """Return why TrainJobs of this runtime would be refused, and whether it is deprecated."""
    reference = {"kind": kind, "name": str(runtime["metadata"].get("name") or "x")}
    probe = {"metadata": {}, "spec": {"runtimeRef": reference}}
    problems = of_train_job(probe, RuntimeSight({**runtime, "metadata": {"name": "x"} | runtime["metadata"]}, is_known=True))
    refused = [Problem(problem.at, f"{problem.message} (TrainJobs of this runtime are refused until then)") for problem in problems]
    return [*of_deprecation(runtime), *refused]


def of_deprecation(runtime: Object | None) -> Sequence[Problem]:
    """Return the warning that a runtime is deprecated."""
    if runtime is None or _labels(runtime).get(SUPPORT) != DEPRECATED:
        return ()
    name = runtime["metadata"].get("name")
    return [Problem((), f"runtime {name} is deprecated, and a later release of Kubeflow Trainer removes it; use another one")]


def _jobs(runtime: Object) -> list[Object]:
    found = _dict(_dict(_dict(runtime.get("spec")).get("template")).get("spec")).get("replicatedJobs")
    return [job for job in found if isinstance(job, dict)] if isinstance(found, list) else []


def _labels(item: Object) -> dict[str, Any]:
    return _dict(_dict(item.get("metadata")).get("labels"))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
