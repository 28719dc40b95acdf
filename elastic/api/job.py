"""Define the job: one typed, frozen model for every kind, as it is in memory with its defaults.

The CRDs are generated from the field names, bounds and descriptions here. The pod template stays the raw object that the user wrote;
elastic.api.template answers questions about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from elastic.api import book
from elastic.api.book import (
    CauseWord,
    Charge,
    Disruption,
    FailedSave,
    Generation,
    Hang,
    Leaving,
    Refusal,
    Replacements,
    Rescale,
    Restart,
    Step,
    Straggler,
    Time,
    Times,
)
from elastic.api.kinds import WORKER, Kind
from elastic.api.restart_budget import RestartBudget
from elastic.api.scaling import Decision, ProgressSource, ScalingPolicy
from elastic.api.words import (
    CleanPodPolicy,
    JobMode,
    LauncherCreation,
    ManagedBy,
    MpiImplementation,
    MpiTransport,
    RdzvBackend,
    RestartPolicy,
    RestartScope,
    Stragglers,
    SuccessPolicy,
    WorkerLibrary,
)

INT32 = 2**31 - 1
MOST_REPLICAS = 10_000
"""A bound on every loop over a job's workers."""
MOST_CONTAINERS = 256
"""Containers in one pod template; the API server estimates the cost of the rules about containers from it."""

Object: TypeAlias = dict[str, Any]
Quantity: TypeAlias = int | str
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_REPLICAS, extra_json_schema={"format": "int32"})]
AtLeastOne: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_REPLICAS, extra_json_schema={"format": "int32"})]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=INT32, extra_json_schema={"format": "int32"})]
Seconds: TypeAlias = Annotated[int, Meta(ge=0, le=INT32, extra_json_schema={"format": "int32"})]
LongSeconds: TypeAlias = Annotated[int, Meta(ge=0, le=2**53, extra_json_schema={"format": "int64"})]
Word: TypeAlias = Annotated[str, Meta(max_length=1024)]


class _Wire(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Reads and writes camelCase, and leaves out fields with their default."""


class Metadata(_Wire, frozen=True, kw_only=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None


class SchedulingPolicy(_Wire, frozen=True, kw_only=True):
    """How the job's pods are scheduled together; used when the controller runs with a gang scheduler."""

    min_available: Natural | None = None
    """Pods that must fit at once. Default: minReplicas of an elastic job, all replicas otherwise."""
    queue: Word | None = None
    """The scheduler's queue. It cannot be changed once the job exists."""
    min_resources: dict[str, Quantity] | None = None
    """Resources that must be free at once. Default: what minAvailable pods ask for."""
    priority_class: Word | None = None
    """Priority class of the pod group."""
    schedule_timeout_seconds: Seconds | None = None
    """How long the scheduler waits for the whole group."""


class RunPolicy(_Wire, frozen=True, kw_only=True):
    """Settings of the job as a whole: its end, its limits, and its controller."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.NONE
    """Pods that are deleted once the job has ended: All, Running (also pending ones) or None. Default: None."""
    ttl_seconds_after_finished: Seconds | None = None
    """Delete the job this long after its end. Default: never."""
    active_deadline_seconds: LongSeconds | None = None
    """Fail the job when it has been active for so long. Default: no limit."""
    backoff_limit: Natural | None = None
    """Restarts caused by the job itself before it fails; disruptions do not count. Default: no limit."""
    restart_scope: RestartScope | None = None
    """Pods that start again when a replica fails or is lost: Pod (this one) or Group (all of the job's, from their last checkpoint, for
    frameworks whose processes cannot go on or take one back). Default: Pod. Group for an MXJob that trains, and for an elastic job of
    a kind that cannot be resized while it trains, except a TFJob with parameter servers. PyTorchJob and MPIJob with
    elasticPolicy heal by themselves."""
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool = False
    """True: delete the pods and wait. Default: false."""
    managed_by: ManagedBy | None = None
    """Controller of this job: kubeflow.org/training-operator (also when unset) or kueue.x-k8s.io/multikueue. It cannot be changed."""


class ReplicaSpec(_Wire, frozen=True, kw_only=True):
    """The replicas of one type."""

    replicas: Count = 1
    """How many. Default: 1; workers of an MPIJob: 0."""
    restart_policy: RestartPolicy = RestartPolicy.NEVER
    """Condition for making a failed pod again: Always, OnFailure, Never, or ExitCode (exit codes from 128 on). Default: OnFailure for
    PyTorchJob and PaddleJob, Never for other kinds."""
    template: Annotated[Object, Meta(extra_json_schema={"$ref": "PodTemplateSpec"})]
    """The pod of each replica."""


class RdzvConf(_Wire, frozen=True, kw_only=True):
    """One setting of the rendezvous backend."""

    key: Annotated[Word, Meta(min_length=1)]
    value: Word


class ElasticPolicy(_Wire, frozen=True, kw_only=True):
    """Makes the job elastic: its workers may come and go between minReplicas and maxReplicas while it trains."""

    min_replicas: AtLeastOne | None = None
    """Workers without which the job waits. Default: maxReplicas, else Worker.replicas."""
    max_replicas: AtLeastOne | None = None
    """Workers beyond which it never grows. Default: the larger of minReplicas and Worker.replicas."""
    rdzv_backend: RdzvBackend | None = None
    """Rendezvous of the workers: elastic (this control plane), c10d, etcd or etcd-v2. Default: elastic, or c10d if it cannot be loaded."""
    rdzv_host: Word | None = None
    """Host of the rendezvous, for c10d and etcd; commas separate several members of an etcd. Default: chosen by the control plane."""
    rdzv_port: Annotated[int, Meta(ge=1, le=65535, extra_json_schema={"format": "int32"})] | None = None
    """Port of the rendezvous. Default: the worker's training port."""
    rdzv_id: Word | None = None
    """Identity of the rendezvous. Default: chosen by the control plane."""
    rdzv_secret: Word | None = None
    """With etcd: a Secret of the namespace with user and password, or ca.crt, tls.crt and tls.key, as far as the etcd asks for them."""
    rdzv_conf: Annotated[tuple[RdzvConf, ...], Meta(max_length=64)] = ()
    """Settings of the backend, as torchrun's --rdzv-conf takes them. An empty list is the same as none."""
    standalone: bool | None = None
    """Start torchrun with --standalone: a group within one pod. Default: false."""
    n_proc_per_node: Natural | None = None
    """Deprecated: use nprocPerNode of the spec."""
    max_restarts: Natural | None = None
    """Restarts of the group that the job itself may cause; disruptions do not count. Default: 0, as torchrun's."""
    metrics: Annotated[tuple[Annotated[Object, Meta(extra_json_schema={"$ref": "MetricSpec"})], ...], Meta(max_length=64)] | None = None
    """Metrics of a HorizontalPodAutoscaler that scales the workers between minReplicas and maxReplicas. Default: none is made."""
    allowed_sizes: Annotated[tuple[AtLeastOne, ...], Meta(max_length=256)] = ()
    """The only numbers of workers that train together; other counts are rounded down. Default: any. Not with sizeStep."""
    size_step: AtLeastOne | None = None
    """Only multiples of this number of workers train together; other counts are rounded down. Default: 1."""
    scale_in_grace_seconds: Seconds = 30
    """How long a worker that was asked to leave may finish its step and save its state before its pod is deleted. Default: 30."""
    restart_budget: RestartBudget | None = None
    max_restarts_without_progress: Annotated[int, Meta(ge=1, le=INT32, extra_json_schema={"format": "int32"})] | None = None
    """Fail the job after so many restarts in a row without a step forward between them, of any cause except changes that
    a user requested. If it is set and maxRestarts is not, nothing else bounds restarts. Default: no limit."""
    hang_timeout_seconds: Annotated[int, Meta(ge=1, le=INT32, extra_json_schema={"format": "int32"})] | None = None
    """Restart, by cause hang, after so long without a further step; without any step, after ranks have waited for a rank for so long."""
    first_step_timeout_seconds: Annotated[int, Meta(ge=1, le=INT32, extra_json_schema={"format": "int32"})] = 600
    """How long a job may take until its first step before the control plane says whether it hangs. Default: 600."""
    stragglers: Stragglers = Stragglers.REPORT
    """The reaction to a rank that the others wait for: Ignore (nothing is measured), Report, or Replace (its worker is replaced, at
    most once in 10 minutes and 3 times in an hour). Default: Report."""
    ready_after_seconds: Seconds = 30
    """Age of a world at which its new workers are Ready, for a drain, if training reports no steps. Default: 30."""
    wait_for_lost_state_seconds: Seconds = 0
    """How long a job waits for an unreachable node if only the workers there have the state of training. Default: 0, do not wait."""
    worker_library: WorkerLibrary = WorkerLibrary.INJECT
    """How elastic_worker gets into the container: Inject (an init container brings it; a copy in the image is preferred), Image
    (the image has it, nothing is added) or None (do without: the backend is c10d). Default: Inject."""
    scaling_policy: ScalingPolicy | None = None
    progress: ProgressSource | None = None

    def is_allowed(self, count: int) -> bool:
        """Return whether exactly this many workers may train together."""
        if self.allowed_sizes:
            return count in self.allowed_sizes
        return count % (self.size_step or 1) == 0

    def largest_allowed(self, count: int) -> int:
        """Return the most workers, up to `count`, that may train together; 0 if none may."""
        if self.allowed_sizes:
            return max((size for size in self.allowed_sizes if size <= count), default=0)
        return count - count % (self.size_step or 1)


class KindOptions(_Wire, frozen=True, kw_only=True):
    """Fields that only some kinds have in their spec; elastic.api.kinds names the kinds."""

    nproc_per_node: Word | None = None
    """Processes per pod, as torchrun takes it: auto, cpu, gpu or a number in quotes. Default: auto."""
    success_policy: SuccessPolicy = SuccessPolicy.DEFAULT
    """AllWorkers: the job has succeeded when all workers have. Default: when worker 0 has."""
    enable_dynamic_worker: bool = False
    """Give each replica a TF_CONFIG that names only what it needs, so that workers may come and go. Default: false."""
    slots_per_worker: Annotated[int, Meta(ge=1, le=INT32, extra_json_schema={"format": "int32"})] = 1
    """MPI slots of each worker. Default: 1."""
    clean_pod_policy: CleanPodPolicy | None = None
    """Older place of runPolicy.cleanPodPolicy, which wins."""
    main_container: Word | None = None
    """The container of a worker in which MPI starts its processes. Default: the first."""
    mpi_transport: MpiTransport = MpiTransport.EXEC
    """How the launcher starts processes in the workers: Exec (through the API server) or SSH (workers run sshd, as in version
    v2beta1 of the MPI Operator). It cannot be changed. Default: Exec."""
    mpi_implementation: MpiImplementation = MpiImplementation.OPEN_MPI
    """MPI of a job with SSH: OpenMPI, Intel or MPICH, which differ in the variables and the host file they read. Default: OpenMPI."""
    ssh_auth_mount_path: Word = "/root/.ssh"
    """With SSH: where the job's key pair is mounted, the .ssh folder of the user that runs. Default: /root/.ssh."""
    run_launcher_as_worker: bool = False
    """Whether the launcher of a job with SSH is a host too. Default: false."""
    launcher_creation_policy: LauncherCreation | None = None
    """AtStartup: the launcher is made together with the workers; WaitForWorkersReady: once all of them are ready. Default:
    WaitForWorkersReady with SSH, AtStartup with Exec."""
    job_mode: JobMode = JobMode.TRAIN
    """MXTrain or MXTune. Default: MXTrain."""


class Condition(_Wire, frozen=True, kw_only=True):
    """One thing that is, or was, so. The last condition is the job's state."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: Time | None = None
    last_transition_time: Time | None = None


class ReplicaStatus(_Wire, frozen=True, kw_only=True):
    """How the replicas of one type are doing."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    label_selector: Annotated[Object, Meta(extra_json_schema={"$ref": "LabelSelector"})] | None = None
    """Deprecated: use selector."""
    selector: str = ""
    """Selects the pods of this type; read through the scale subresource."""


class ElasticStatus(_Wire, frozen=True, kw_only=True):
    """Workers that train together at the moment, and their history."""

    backend: str = ""
    """The rendezvous backend in use."""
    generation: Generation = 0
    """Number of the current group; it only grows."""
    world_size: Natural = 0
    """Workers in the current group."""
    ranks: str = ""
    """The indexes of the workers at our rendezvous in the order of their ranks, `1,0,2`, at the end those of the last world; of at most
    1,024 workers."""
    waits_for: str = ""
    """The reason why fewer workers run than are wanted, or the workers that run and are not at the rendezvous."""
    hang: Hang | None = None
    stragglers: Annotated[tuple[Straggler, ...], Meta(max_length=8)] = ()
    """Ranks that the others wait for, the slowest first."""
    ended_early: str = ""
    """The first workers that ended with status 0 while others failed. The job counts as complete once the others have ended, too."""
    failed_saves: Annotated[tuple[FailedSave, ...], Meta(max_length=8)] = ()
    """Ranks whose newest save failed."""
    waiting: str = ""
    """The words that the newest condition's message ends with for as long as the job waits to create pods."""
    observed: str = ""
    """Source of this in an elastic MPIJob: Horovod's `driver` or the `pods`."""
    leaving: tuple[Leaving, ...] = ()
    disruptions: tuple[Disruption, ...] = ()
    """The newest disruptions that the cluster announced, at most 16, oldest first."""
    last_rescale: Rescale | None = None
    restarts: Annotated[dict[CauseWord, Times], Meta(max_length=64)] = {}
    """Ends of workers by cause. One restart of the job may count several workers."""
    restart_count: Times | None = None
    """Restarts of the job that nobody asked for."""
    open: tuple[Restart, ...] = ()
    """Restarts that may be reported again or turn out to have another cause; at most a few for each pod that exists."""
    charged: tuple[Charge, ...] = ()
    """Restarts of the last restartBudget.windowSeconds, if that is set, with dates; near ones share a date."""
    fruitless: Times = 0
    """Restarts in a row without a step forward, counted where maxRestartsWithoutProgress is set."""
    step: Step | None = None
    """The highest step that training had reported at the last restart, or at the end of the job."""
    closed: str = ""
    """Why the job is about to be failed: its group was let end, or its restarts are used up."""
    counted: tuple[str, ...] = ()
    """Ends that were counted, pods (uid), containers at the rendezvous (uid/run), disruptions (uid/container/run); of gone pods some."""
    refused: tuple[Refusal, ...] = ()
    """Pods that nodes or the API server have refused in a row, and how long the next try waits; at most two for each replica type."""
    replaced: tuple[Replacements, ...] = ()
    """Pods that were made of late, and how many of them were lost soon after; one entry for each replica type at most."""
    last_loss: book.LastLoss | None = None
    """The newest pod that the cluster took, where the controller decides what its peers' ends mean."""
    autoscaler: Decision | None = None


class JobStatus(_Wire, frozen=True, kw_only=True):
    """Knowledge of the control plane about the job."""

    conditions: tuple[Condition, ...] = ()
    """Conditions in the order in which they came true; the last one is the state."""
    replica_statuses: dict[str, ReplicaStatus] = {}
    """Numbers of pods by replica type."""
    start_time: Time | None = None
    completion_time: Time | None = None
    last_reconcile_time: Time | None = None
    elastic: ElasticStatus | None = None

    def condition(self, type: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type), None)


class Job(Struct, frozen=True, kw_only=True):
    """A job of any kind, valid and with its defaults applied. Made by elastic.api.parser only."""

    kind: Kind
    metadata: Metadata
    run_policy: RunPolicy
    replicas: Mapping[str, ReplicaSpec]
    """By canonical type, in the kind's order."""
    elastic: ElasticPolicy | None = None
    options: KindOptions
    status: JobStatus

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name

    @property
    def workers(self) -> int:
        """How many workers are asked for."""
        spec = self.replicas.get(WORKER)
        return spec.replicas if spec else 0

    @property
    def least_workers(self) -> int:
        """Minimum number of workers; the job waits below it. For a job that is not elastic, the whole number."""
        return self.bounds[0]

    @property
    def most_workers(self) -> int:
        """Maximum number of workers. For a job that is not elastic, the whole number."""
        return self.bounds[1]

    @property
    def bounds(self) -> tuple[int, int]:
        return bounds(self.elastic, self.workers)


def bounds(elastic: ElasticPolicy | None, workers: int) -> tuple[int, int]:
    """(least, most) workers, with upstream's defaults: a missing minimum is the maximum, and both are `workers` where neither is set."""
    if elastic is None:
        return workers, workers
    least, most = elastic.min_replicas, elastic.max_replicas
    if least is None:
        asked = most if most is not None else workers
        least = elastic.largest_allowed(asked) or asked
    return least, max(least, workers) if most is None else most


def to_object(job: Job) -> Object:
    """Return the job as JSON's types, with defaults written out if the kinds differ; it parses to the same job."""
    spec: Object = {"runPolicy": msgspec.to_builtins(job.run_policy)}
    spec.update(msgspec.to_builtins(job.options))
    if job.elastic is not None:
        spec["elasticPolicy"] = msgspec.to_builtins(job.elastic)
    spec[job.kind.replica_key] = {
        name: {"replicas": r.replicas, "restartPolicy": r.restart_policy.value, "template": r.template} for name, r in job.replicas.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": job.kind.name,
        "metadata": msgspec.to_builtins(job.metadata),
        "spec": spec,
        "status": msgspec.to_builtins(job.status),
    }
