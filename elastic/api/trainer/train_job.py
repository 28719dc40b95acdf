"""Define TrainJob as of Kubeflow Trainer v2.3.0. `elastic.api.trainer.crd` makes the definition from these types."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from elastic.api.kinds import TRAIN_JOBS
from elastic.api.trainer.shapes import (
    ATOMIC,
    IMMUTABLE,
    Env,
    Int32,
    Int64,
    Name,
    Natural,
    Object,
    ObjectMeta,
    Reference,
    Time,
    Wire,
    extra,
    part,
    rule,
)

GROUP = TRAIN_JOBS
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
TRAIN_JOB, RUNTIME, CLUSTER_RUNTIME = "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"
ANCESTOR, ANCESTOR_TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step", "trainer"
"""Label of the job of the nodes in a runtime, and of their pods."""
OURS = "trainer.kubeflow.org/trainjob-controller"
"""Value of managedBy that means the controller of TrainJobs, which is also the default."""
MULTI_KUEUE = "kueue.x-k8s.io/multikueue"
NOT_SUPPORTED = "TrainingRuntimeNotSupported"
"""Reason of the condition Failed of a TrainJob that the controller cannot carry out as it is. It starts once that has changed."""


class RuntimeRef(Wire, frozen=True, kw_only=True):
    name: Name
    api_group: Annotated[str, Meta(max_length=253, extra_json_schema={"default": GROUP})] = GROUP
    kind: Annotated[str, Meta(max_length=253, extra_json_schema={"default": CLUSTER_RUNTIME})] = CLUSTER_RUNTIME


URI = rule(
    "self == '' || self.matches('^[A-Za-z][A-Za-z0-9+.-]*://.+$')",
    "storageUri may be empty, or it must be a valid URI (scheme://...)",
)


class Source(Wire, frozen=True, kw_only=True):
    """Place from which an initializer loads the data set or the model."""

    env: Env = ()
    secret_ref: Reference | None = None
    storage_uri: Annotated[str, Meta(max_length=2048), extra(rules=[URI])] | None = None


class Initializer(Wire, frozen=True, kw_only=True):
    dataset: Source | None = None
    model: Source | None = None


Words = Annotated[tuple[Annotated[str, Meta(max_length=1048576)], ...], Meta(max_length=128), extra(**ATOMIC)]


class Trainer(Wire, frozen=True, kw_only=True):
    """Settings of the nodes that win over the runtime's."""

    image: Annotated[str, Meta(max_length=500)] | None = None
    command: Words | None = None
    args: Words | None = None
    env: Env = ()
    num_nodes: Int32 | None = None
    resources_per_node: Annotated[Object, part("ResourceRequirements")] | None = None
    num_proc_per_node: Int32 | None = None


class ContainerPatch(Wire, frozen=True, kw_only=True):
    name: Name
    env: Env = ()
    security_context: Annotated[Object, part("SecurityContext")] | None = None
    volume_mounts: Annotated[tuple[Annotated[Object, part("VolumeMount")], ...], Meta(max_length=128), extra(keys=["name"])] = ()


Containers = Annotated[tuple[ContainerPatch, ...], Meta(max_length=64), extra(keys=["name"], rules=IMMUTABLE)]


class PodSpecPatch(Wire, frozen=True, kw_only=True):
    affinity: Annotated[Object, part("Affinity")] | None = None
    containers: Containers = ()
    image_pull_secrets: Annotated[tuple[Reference, ...], Meta(max_length=64), extra(keys=["name"], rules=IMMUTABLE)] = ()
    init_containers: Containers = ()
    node_selector: dict[str, str] | None = None
    scheduling_gates: Annotated[tuple[Annotated[Object, part("PodSchedulingGate")], ...], Meta(max_length=16), extra(keys=["name"])] = ()
    security_context: Annotated[Annotated[Object, part("PodSecurityContext")], extra(rules=IMMUTABLE)] | None = None
    service_account_name: Annotated[str, Meta(max_length=253), extra(rules=IMMUTABLE)] | None = None
    termination_grace_period_seconds: (
        Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64", "x-kubernetes-validations": IMMUTABLE})] | None
    ) = None
    tolerations: Annotated[tuple[Annotated[Object, part("Toleration")], ...], Meta(max_length=128), extra(**ATOMIC)] = ()
    volumes: Annotated[tuple[Annotated[Object, part("Volume")], ...], Meta(max_length=128), extra(keys=["name"], rules=IMMUTABLE)] = ()


class PodTemplatePatch(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta | None = None
    spec: PodSpecPatch | None = None


class JobSpecPatch(Wire, frozen=True, kw_only=True):
    template: PodTemplatePatch | None = None


class JobTemplatePatch(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta | None = None
    spec: JobSpecPatch | None = None


class ReplicatedJobPatch(Wire, frozen=True, kw_only=True):
    name: Name
    template: JobTemplatePatch | None = None


class JobSetSpecPatch(Wire, frozen=True, kw_only=True):
    replicated_jobs: Annotated[tuple[ReplicatedJobPatch, ...], Meta(max_length=100), extra(keys=["name"])] = ()


class JobSetTemplatePatch(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta | None = None
    spec: JobSetSpecPatch | None = None


class RuntimeSpecPatch(Wire, frozen=True, kw_only=True):
    template: JobSetTemplatePatch | None = None


class RuntimePatch(Wire, frozen=True, kw_only=True):
    """Changes of the runtime that one manager, such as Kueue, makes for this job."""

    manager: Annotated[str, Meta(min_length=1, max_length=253), extra(rules=IMMUTABLE)]
    time: Time | None = None
    training_runtime_spec: RuntimeSpecPatch | None = None


KNOWN_MANAGER = rule(f"self in ['{OURS}', '{MULTI_KUEUE}']", f"ManagedBy must be {OURS} or {MULTI_KUEUE} if set")


class TrainJobSpec(Wire, frozen=True, kw_only=True):
    runtime_ref: Annotated[RuntimeRef, extra(rules=IMMUTABLE)]
    initializer: Annotated[Initializer, extra(rules=IMMUTABLE)] | None = None
    trainer: Annotated[Trainer, extra(rules=IMMUTABLE)] | None = None
    runtime_patches: Annotated[tuple[RuntimePatch, ...], Meta(max_length=16), extra(keys=["manager"])] = ()
    suspend: Annotated[bool, extra(default=False)] = False
    active_deadline_seconds: (
        Annotated[int, Meta(ge=1, extra_json_schema={"format": "int64", "x-kubernetes-validations": IMMUTABLE})] | None
    ) = None
    managed_by: (
        Annotated[str, Meta(max_length=253, extra_json_schema={"default": OURS}), extra(rules=[KNOWN_MANAGER, *IMMUTABLE])] | None
    ) = None


# A status may have fields of a later version, which must not hide that a TrainJob has ended.
class Condition(Wire, frozen=True, kw_only=True, forbid_unknown_fields=False):
    last_transition_time: Time
    message: Annotated[str, Meta(max_length=32768)]
    reason: Annotated[str, Meta(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    status: Annotated[str, extra(enum=["True", "False", "Unknown"])]
    type: Annotated[
        str,
        Meta(
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ]
    observed_generation: Annotated[Int64, Meta(ge=0)] | None = None


class ChildStatus(Wire, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """How many groups of pods of one role are ready, have ended, or are suspended. There is one group of nodes."""

    active: Natural
    failed: Natural
    name: Name
    ready: Natural
    succeeded: Natural
    suspended: Natural


class Metric(Wire, frozen=True, kw_only=True, forbid_unknown_fields=False):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    value: Annotated[str, Meta(min_length=1, max_length=64)]


class TrainerStatus(Wire, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Progress of training, as the program reported it."""

    estimated_remaining_seconds: Natural | None = None
    last_updated_time: Time | None = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=256), extra(**ATOMIC)] = ()
    progress_percentage: Annotated[int, Meta(ge=0, le=100, extra_json_schema={"format": "int32"})] | None = None


HAS_TIME = rule("has(self.lastUpdatedTime)", "lastUpdatedTime is required when trainerStatus is present")


class TrainJobStatus(Wire, frozen=True, kw_only=True, forbid_unknown_fields=False):
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=8), extra(keys=["type"])] = ()
    jobs_status: Annotated[tuple[ChildStatus, ...], Meta(max_length=100), extra(keys=["name"])] = ()
    trainer_status: Annotated[TrainerStatus, extra(rules=[HAS_TIME])] | None = None


class TrainJob(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: TrainJobSpec
    api_version: str | None = None
    kind: str | None = None
    status: Annotated[TrainJobStatus, extra(minProperties=1)] = TrainJobStatus()
