"""Define TrainingRuntime and ClusterTrainingRuntime as of Kubeflow Trainer v2.3.0, with the JobSet that they hold as a template.

Pod templates and metadata stay raw objects. `elastic.api.trainer.crd` makes the definitions from these types.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from elastic.api.trainer.shapes import ATOMIC, FIXED, Int32, Int64, Name, Object, ObjectMeta, Selector, Time, Wire, extra, part, rule


class PodFailureRule(Wire, frozen=True, kw_only=True):
    class ExitCodes(Wire, frozen=True, kw_only=True):
        operator: str
        values: Annotated[tuple[Int32, ...], extra(x_kubernetes_list_type="set")]
        container_name: str | None = None

    class Condition(Wire, frozen=True, kw_only=True):
        type: str
        status: str | None = None

    action: str
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: Annotated[tuple[Condition, ...], extra(**ATOMIC)] = ()


class PodFailurePolicy(Wire, frozen=True, kw_only=True):
    rules: Annotated[tuple[PodFailureRule, ...], extra(**ATOMIC)]


class JobSuccessRule(Wire, frozen=True, kw_only=True):
    succeeded_count: Int32 | None = None
    succeeded_indexes: str | None = None


class JobSuccessPolicy(Wire, frozen=True, kw_only=True):
    rules: Annotated[tuple[JobSuccessRule, ...], extra(**ATOMIC)]


class BatchJobSpec(Wire, frozen=True, kw_only=True):
    """The spec of a batch/v1 Job."""

    template: Annotated[Object, part("PodTemplateSpec")]
    active_deadline_seconds: Int64 | None = None
    backoff_limit: Int32 | None = None
    backoff_limit_per_index: Int32 | None = None
    completion_mode: str | None = None
    completions: Int32 | None = None
    managed_by: str | None = None
    manual_selector: bool | None = None
    max_failed_indexes: Int32 | None = None
    parallelism: Int32 | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str | None = None
    selector: Selector | None = None
    success_policy: JobSuccessPolicy | None = None
    suspend: bool | None = None
    ttl_seconds_after_finished: Int32 | None = None


class JobTemplate(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta | None = None
    spec: BatchJobSpec | None = None


class DependsOn(Wire, frozen=True, kw_only=True):
    name: str
    status: Annotated[str, extra(enum=["Ready", "Complete"])]


class ReplicatedJob(Wire, frozen=True, kw_only=True):
    """Pods of one role: the nodes, an initializer, or a launcher."""

    name: str
    template: JobTemplate
    depends_on: Annotated[tuple[DependsOn, ...], Meta(max_length=5), extra(keys=["name"], rules=FIXED)] = ()
    group_name: Annotated[str, extra(default="default")] = "default"
    replicas: Annotated[Int32, extra(default=1)] = 1


class Coordinator(Wire, frozen=True, kw_only=True):
    replicated_job: str
    job_index: int | None = None
    pod_index: int | None = None


class FailureRule(Wire, frozen=True, kw_only=True):
    action: Annotated[
        str,
        extra(enum=["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts"]),
    ]
    name: str
    on_job_failure_message_patterns: tuple[str, ...] = ()
    on_job_failure_reasons: tuple[str, ...] = ()
    target_replicated_jobs: Annotated[tuple[str, ...], extra(**ATOMIC)] = ()


class FailurePolicy(Wire, frozen=True, kw_only=True):
    max_restarts: Int32 | None = None
    restart_strategy: Annotated[str, extra(default="Recreate", enum=["Recreate", "BlockingRecreate", "InPlaceRestart"])] = "Recreate"
    rules: tuple[FailureRule, ...] = ()


class Network(Wire, frozen=True, kw_only=True):
    enable_dns_hostnames: bool | None = field(default=None, name="enableDNSHostnames")
    publish_not_ready_addresses: bool | None = None
    subdomain: str | None = None


class StartupPolicy(Wire, frozen=True, kw_only=True):
    startup_policy_order: Annotated[str, extra(enum=["AnyOrder", "InOrder"])]


class SuccessPolicy(Wire, frozen=True, kw_only=True):
    operator: Annotated[str, extra(enum=["All", "Any"])]
    target_replicated_jobs: Annotated[tuple[str, ...], extra(**ATOMIC)] = ()


class RetentionPolicy(Wire, frozen=True, kw_only=True):
    when_deleted: Annotated[str, extra(default="Delete", enum=["Delete", "Retain"])] = "Delete"


class ClaimCondition(Wire, frozen=True, kw_only=True):
    status: str
    type: str
    last_probe_time: Time | None = None
    last_transition_time: Time | None = None
    message: str | None = None
    reason: str | None = None


class ModifyVolumeStatus(Wire, frozen=True, kw_only=True):
    status: str
    target_volume_attributes_class_name: str | None = None


class ClaimStatus(Wire, frozen=True, kw_only=True):
    access_modes: Annotated[tuple[str, ...], extra(**ATOMIC)] = ()
    allocated_resource_statuses: Annotated[dict[str, str], extra(x_kubernetes_map_type="granular")] | None = None
    allocated_resources: dict[str, int | str] | None = None
    capacity: dict[str, int | str] | None = None
    conditions: Annotated[tuple[ClaimCondition, ...], extra(keys=["type"])] = ()
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: ModifyVolumeStatus | None = None
    phase: str | None = None


class VolumeClaim(Wire, frozen=True, kw_only=True):
    api_version: str | None = None
    kind: str | None = None
    metadata: ObjectMeta | None = None
    spec: Annotated[Object, part("PersistentVolumeClaimSpec")] | None = None
    status: ClaimStatus | None = None


NO_NAMESPACE = rule(
    "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)",
    "namespace cannot be set for VolumeClaimPolicies templates",
)


class VolumeClaimPolicy(Wire, frozen=True, kw_only=True):
    retention_policy: RetentionPolicy | None = None
    templates: Annotated[tuple[VolumeClaim, ...], Meta(max_length=50), extra(**ATOMIC)] = ()


class JobSetSpec(Wire, frozen=True, kw_only=True):
    """The spec of a JobSet."""

    coordinator: Coordinator | None = None
    failure_policy: Annotated[FailurePolicy, extra(rules=FIXED)] | None = None
    managed_by: str | None = None
    network: Annotated[Network, extra(rules=FIXED)] | None = None
    replicated_jobs: Annotated[tuple[ReplicatedJob, ...], extra(keys=["name"])] = ()
    startup_policy: Annotated[StartupPolicy, extra(rules=FIXED)] | None = None
    success_policy: Annotated[SuccessPolicy, extra(rules=FIXED)] | None = None
    suspend: bool | None = None
    ttl_seconds_after_finished: Annotated[int, Meta(ge=0, extra_json_schema={"format": "int32"})] | None = None
    volume_claim_policies: Annotated[
        tuple[Annotated[VolumeClaimPolicy, extra(rules=[NO_NAMESPACE])], ...], Meta(max_length=50), extra(**ATOMIC, rules=FIXED)
    ] = ()


ONE_ORDER = rule(
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' && self.replicatedJobs.exists(x, has(x.dependsOn)))",
    "StartupPolicy and DependsOn APIs are mutually exclusive",
)


class JobSetTemplate(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta | None = None
    spec: Annotated[JobSetSpec, extra(rules=[ONE_ORDER])] | None = None


class Coscheduling(Wire, frozen=True, kw_only=True):
    schedule_timeout_seconds: Annotated[Int32, extra(default=60)] | None = None


class NetworkTopology(Wire, frozen=True, kw_only=True):
    highest_tier_allowed: Annotated[int, extra(default=1)] | None = None
    mode: Annotated[str, extra(default="hard", enum=["hard", "soft"])] = "hard"


class Volcano(Wire, frozen=True, kw_only=True):
    network_topology: NetworkTopology | None = None


class PodGroupPolicy(Wire, frozen=True, kw_only=True):
    coscheduling: Coscheduling | None = None
    volcano: Volcano | None = None


NOT_NODE = rule(
    "!self.exists(c, c == 'node')",
    "containerNames must not include the main node container because PET_* envs are always injected into it",
)


class EnvTarget(Wire, frozen=True, kw_only=True):
    container_names: Annotated[
        tuple[Annotated[str, Meta(max_length=63)], ...],
        Meta(min_length=1, max_length=8),
        extra(x_kubernetes_list_type="set", rules=[NOT_NODE]),
    ]
    job_name: Name


class EnvInjection(Wire, frozen=True, kw_only=True):
    targets: Annotated[tuple[EnvTarget, ...], Meta(max_length=16), extra(keys=["jobName"])] = ()


class Torch(Wire, frozen=True, kw_only=True):
    env_injection: EnvInjection | None = None


class Mpi(Wire, frozen=True, kw_only=True):
    mpi_implementation: Annotated[str, extra(default="OpenMPI", enum=["OpenMPI", ""])] = "OpenMPI"
    num_proc_per_node: Annotated[Int32, extra(default=1)] = 1
    run_launcher_as_node: Annotated[bool, extra(default=False)] = False
    ssh_auth_mount_path: Annotated[str, Meta(max_length=4096, extra_json_schema={"default": "/root/.ssh"})] = "/root/.ssh"


AT_LEAST_ONE = rule("self >= 1", "NumProcPerNode in fluxPolicy must be >= 1")


class Flux(Wire, frozen=True, kw_only=True):
    num_proc_per_node: Annotated[Int32, extra(default=1, rules=[AT_LEAST_ONE])] = 1


class Nothing(Wire, frozen=True, kw_only=True):
    """A policy without settings."""


class MLPolicy(Wire, frozen=True, kw_only=True):
    """How the nodes find each other. Without torch, mpi, jax, xgboost or flux, they do not: plain ML."""

    num_nodes: Int32 | None = None
    torch: Torch | None = None
    mpi: Mpi | None = None
    flux: Flux | None = None
    jax: Nothing | None = None
    xgboost: Nothing | None = None


ONE_POLICY = rule(
    "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)].filter(x, x).size() <= 1",
    "Only one of the policy can be configured",
)


class RuntimeSpec(Wire, frozen=True, kw_only=True):
    ml_policy: Annotated[MLPolicy, extra(rules=[ONE_POLICY])] | None = field(default=None, name="mlPolicy")
    pod_group_policy: PodGroupPolicy | None = None
    template: Annotated[JobSetTemplate, extra(minProperties=1)] | None = None


class Runtime(Wire, frozen=True, kw_only=True):
    """A TrainingRuntime or ClusterTrainingRuntime."""

    metadata: ObjectMeta
    api_version: str | None = None
    kind: str | None = None
    spec: Annotated[RuntimeSpec, extra(minProperties=1)] = RuntimeSpec()
