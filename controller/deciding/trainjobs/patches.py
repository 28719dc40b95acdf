"""Apply a TrainJob's runtimePatches to the jobs of its runtime, as a strategic merge patch does.

A manager such as Kueue or the SDK changes labels, scheduling and volumes of a TrainJob's pods this way. Patches may change while the
TrainJob is suspended.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from elastic.api import names
from elastic.api.errors import Path, Problem, shown
from elastic.api.job import Object
from elastic.api.kinds import DATASET_INITIALIZER, MODEL_INITIALIZER
from elastic.api.trainer.runtime import JobTemplate, ReplicatedJob
from elastic.api.trainer.train_job import ReplicatedJobPatch, RuntimePatch
from elastic_training.controller.deciding.trainjobs import nodes

KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
}
"""Lists whose entries are merged one by one, with the field that names an entry. Every other list replaces the runtime's."""
ENVIRONMENTS = {
    nodes.NODE: "spec.trainer.env",
    DATASET_INITIALIZER: "spec.initializer.dataset.env",
    MODEL_INITIALIZER: "spec.initializer.model.env",
}
"""Fields of a TrainJob that set the environment of a container, which patches may not set."""
FIELD: Path = ("spec", "runtimePatches")
PATCHES = f"{names.OWN_PREFIX}runtime-patches"
"""Annotation of the owned job: the checksum of the patches in its pods. A job without patches has none."""


def applied(job: ReplicatedJob, patches: Sequence[RuntimePatch]) -> ReplicatedJob:
    """Return a job of the runtime with all patches that name it."""
    template = msgspec.to_builtins(job.template)
    for _, patch in _of_jobs(patches):
        if patch.name == job.name and patch.template is not None:
            template = merged(template, msgspec.to_builtins(patch.template))
    return msgspec.structs.replace(job, template=msgspec.convert(template, JobTemplate))


def checksum(patches: Sequence[RuntimePatch]) -> str | None:
    """Return the value of the annotation PATCHES for these patches."""
    timeless = [msgspec.structs.replace(patch, time=None) for patch in patches]
    return hashlib.sha256(msgspec.json.encode(timeless, order="deterministic")).hexdigest()[:16] if patches else None


def metadata(patches: Sequence[RuntimePatch]) -> Iterator[Mapping[str, Any]]:
    """Yield the patches of the metadata that belongs to all pods together."""
    for patch in patches:
        spec = patch.training_runtime_spec
        if spec is not None and spec.template is not None and spec.template.metadata:
            yield spec.template.metadata


def problems(jobs: Sequence[ReplicatedJob], patches: Sequence[RuntimePatch]) -> Iterator[Problem]:
    """Yield what upstream's webhook refuses: jobs and containers that the runtime does not have, and the environment of our containers."""
    for number, one in enumerate(patches):
        domain, _, path = one.manager.partition("/")
        if not (domain and path):
            message = f"manager is {shown(one.manager)}; it must be a domain and a path, such as example.com/manager"
            yield Problem((*FIELD, number, "manager"), message)
    known = {job.name: job for job in jobs}
    for at, patch in _of_jobs(patches):
        if patch.name not in known:
            yield Problem((*at, "name"), f"the runtime has no job {shown(patch.name)}; it has {', '.join(known)}")
        elif patch.template is not None:
            yield from _of_pods(known[patch.name], patch, at)


def _of_jobs(patches: Sequence[RuntimePatch]) -> Iterator[tuple[Path, ReplicatedJobPatch]]:
    for number, patch in enumerate(patches):
        spec = patch.training_runtime_spec
        if spec is not None and spec.template is not None and spec.template.spec is not None:
            at = (*FIELD, number, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
            yield from (((*at, place), job) for place, job in enumerate(spec.template.spec.replicated_jobs))


def _of_pods(job: ReplicatedJob, patch: ReplicatedJobPatch, at: Path) -> Iterator[Problem]:
    pod = ((job.template.spec.template if job.template.spec is not None else {}).get("spec")) or {}
    wanted = patch.template.spec.template if patch.template is not None and patch.template.spec is not None else None
    if wanted is None or wanted.spec is None:
        return
    at = (*at, "template", "spec", "template", "spec")
    for word, containers in (("containers", wanted.spec.containers), ("initContainers", wanted.spec.init_containers)):
        names = [str(container.get("name")) for container in pod.get(word) or ()]
        for place, container in enumerate(containers):
            if container.name not in names:
                yield Problem(
                    (*at, word, place, "name"), f"the job {job.name} of the runtime has no such container; it has {', '.join(names)}"
                )
            elif container.env and (field := ENVIRONMENTS.get(container.name)) is not None:
                yield Problem((*at, word, place, "env"), f"must not have envs for the {container.name} container; use {field}")


def merged(base: object, patch: object, field: str = "") -> Any:
    """Return the patch on top of the base."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: merged(base.get(key), value, key) for key, value in patch.items()}}
    if isinstance(base, list | tuple) and isinstance(patch, list | tuple) and field in KEYS:
        return _merged_lists(base, patch, KEYS[field])
    return patch


def _merged_lists(base: Sequence[Object], patch: Sequence[Object], key: str) -> list[Object]:
    made = {str(entry.get(key)): entry for entry in base}
    for entry in patch:
        name = str(entry.get(key))
        made[name] = merged(made[name], entry) if name in made else entry
    return list(made.values())
