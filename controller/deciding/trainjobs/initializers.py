"""Turn a runtime's initializers into jobs that load data and model before the nodes start, and make these jobs follow their TrainJob.

Each initializer becomes a PyTorchJob with one pod. The nodes' job waits for those that its annotation WAITS_FOR names. A completed
initializer leaves the annotation, so none runs twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elastic.api import names, status_of
from elastic.api.errors import Path, Problem
from elastic.api.job import Object
from elastic.api.kinds import API_VERSION, DATASET_INITIALIZER, INITIALIZERS, POLICY, WORKER
from elastic.api.names import INITIALIZER_FAILED, STOPPED, WAITS_FOR
from elastic.api.trainer.runtime import ReplicatedJob
from elastic.api.trainer.train_job import Source, TrainJobSpec
from elastic.api.words import ConditionType
from elastic_training.controller.deciding.lifecycle.conditions import holds, is_over
from elastic_training.controller.deciding.objects.differences import merge_patch
from elastic_training.controller.deciding.trainjobs import nodes
from elastic_training.controller.deciding.trainjobs.bounds import annotations_of
from elastic_training.controller.deciding.trainjobs.patches import PATCHES

VOLUME = "initializer"
"""Name of the volume that an initializer shares with the nodes. Upstream requires it of an initializer that a TrainJob configures."""
STORAGE_URI = "STORAGE_URI"
LONGEST_REASON = 2000
RUNTIME_REF: Path = ("spec", "runtimeRef")


def name(train_job: str, step: str) -> str:
    """Return the name of an initializer's job."""
    return f"{train_job}-{step}"


def source(spec: TrainJobSpec, step: str) -> Source | None:
    """Return the source that a TrainJob gives to one of its initializers."""
    if spec.initializer is None:
        return None
    return spec.initializer.dataset if step == DATASET_INITIALIZER else spec.initializer.model


def problems(spec: TrainJobSpec, found: Sequence[ReplicatedJob]) -> Iterator[Problem]:
    """Yield the initializers that a TrainJob configures and its runtime lacks, in the words of Kubeflow Trainer."""
    known = {job.name: job for job in found}
    for step, word in zip(INITIALIZERS, ("datasetConfig", "modelConfig"), strict=True):
        if source(spec, step) is None:
            continue
        if step not in known:
            yield Problem(RUNTIME_REF, f"must have {step} job when trainJob is configured with input {word}")
        elif all(mount.get("name") != VOLUME for mount in _container(_template(known[step]), step).get("volumeMounts") or ()):
            yield Problem(RUNTIME_REF, f"must have volumeMount with name - {VOLUME} in container {step} of the {step} job")


def lowered(metadata: Object, job: ReplicatedJob, source: Source | None, *, checksum: str | None, run_policy: Object) -> Object:
    """Return the job of one initializer. `metadata` has the name, place and owner of the nodes' job."""
    train_job, written = metadata["name"], job.template.metadata or {}
    labels, annotations = ({**(written.get(field) or {})} for field in ("labels", "annotations"))
    # Its programs have no part in the progress of training.
    annotations |= {POLICY: job.name, names.REPORT: names.REPORT_OFF} | ({PATCHES: checksum} if checksum is not None else {})
    never = run_policy["backoffLimit"] == 0
    worker = {"replicas": 1, "restartPolicy": "Never" if never else "OnFailure", "template": _pod(train_job, job, source)}
    return {
        "apiVersion": API_VERSION,
        "kind": "PyTorchJob",
        "metadata": metadata | {"name": name(train_job, job.name), "labels": labels, "annotations": annotations},
        "spec": {"runPolicy": {"cleanPodPolicy": "Running", **run_policy}, "pytorchReplicaSpecs": {WORKER: worker}},
    }


def _template(job: ReplicatedJob) -> Object:
    return job.template.spec.template if job.template.spec is not None else {}


def _container(template: Object, step: str) -> Object:
    containers: Sequence[Object] = (template.get("spec") or {}).get("containers") or ()
    return next((container for container in containers if container.get("name") == step), {})


def _pod(train_job: str, job: ReplicatedJob, source: Source | None) -> Object:
    made: Object = json.loads(json.dumps(_template(job)))
    metadata = made.setdefault("metadata", {})
    labels = {**nodes.labels(train_job, job.name, step=job.name), names.NODE_NUMBER: "0"}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    made["spec"].pop("restartPolicy", None)
    container = _container(made, job.name)
    # A failure quotes the last line of the log.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if source is not None:
        uri = [{"name": STORAGE_URI, "value": source.storage_uri}] if source.storage_uri is not None else []
        container["env"] = nodes.merged(nodes.merged(container.get("env") or (), uri), source.env)
        if source.secret_ref is not None:
            container["envFrom"] = [*(container.get("envFrom") or ()), {"secretRef": source.secret_ref}]
    return made


def awaited(owned: Object) -> list[str]:
    """Return the initializers for which the nodes' job still waits."""
    return [word for word in annotations_of(owned).get(WAITS_FOR, "").split(",") if word]


def progress(owned: Object, there: Mapping[str, Object]) -> dict[str, str | None]:
    """Return the annotations of the nodes' job that change because an initializer has completed or failed."""
    before = awaited(owned)
    left = [step for step in before if step not in there or not holds(status_of(there[step]), ConditionType.SUCCEEDED)]
    changed: dict[str, str | None] = {} if left == before else {WAITS_FOR: ",".join(left) or None}
    if INITIALIZER_FAILED not in annotations_of(owned):
        for step in left:
            end = status_of(there[step]).condition(ConditionType.FAILED.value) if step in there else None
            if end is not None and end.status == "True":
                return changed | {INITIALIZER_FAILED: f"{step}: {end.message}"[:LONGEST_REASON]}
    return changed


def unfinished(there: Mapping[str, Object]) -> Iterator[Object]:
    """Yield the initializers' jobs that have not ended."""
    return (job for job in there.values() if not is_over(status_of(job)))


def following(there: Mapping[str, Object], wanted: Mapping[str, Object], *, is_suspended: bool) -> Iterator[tuple[Object, Object]]:
    """Yield each initializer's job that must change, with the merge patch. It is suspended with the nodes' job, and resumed with it.

    Without `wanted`, the jobs as the runtime and its patches make them, nothing else changes.
    """
    for step, job in there.items():
        if is_over(status_of(job)):
            continue
        known, was_suspended = annotations_of(job), bool((job["spec"].get("runPolicy") or {}).get("suspend"))
        spec: Object = {} if was_suspended == is_suspended else {"runPolicy": {"suspend": is_suspended}}
        # `elastic resume` of the nodes' job resumes the initializers, too.
        annotations: dict[str, Any] = {STOPPED: None} if STOPPED in known and not is_suspended else {}
        new = wanted.get(step)
        if new is not None and was_suspended and annotations_of(new).get(PATCHES) != known.get(PATCHES):
            annotations[PATCHES] = annotations_of(new).get(PATCHES)
            templates = [one["spec"]["pytorchReplicaSpecs"][WORKER]["template"] for one in (job, new)]
            spec["pytorchReplicaSpecs"] = {WORKER: {"template": merge_patch(*templates)}}
        if spec or annotations:
            yield job, ({"spec": spec} if spec else {}) | ({"metadata": {"annotations": annotations}} if annotations else {})
