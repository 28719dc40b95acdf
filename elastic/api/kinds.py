"""List the facts about each kind of job: names in the API, replica types, container, port, defaults, label values.

A fact that two kinds share by accident is here twice. A fact about a single job is in elastic.api.job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from elastic.api.owners import controller_of
from elastic.api.words import RestartPolicy

GROUP = "kubeflow.org"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"
WORKER = "Worker"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """There is one object for each kind, and it is equal to itself only."""

    name: str
    """`PyTorchJob`: the word under `kind:`."""
    plural: str
    singular: str
    replica_key: str
    """The key below spec that holds the replica specs."""
    types: tuple[str, ...]
    """Replica types by their canonical names, in upstream's order."""
    container: str
    """The container that trains; upstream calls it the default container."""
    container_required: bool = True
    """Whether the container must have this name. If not, containers[0] is the container that trains."""
    port_name: str
    port: int
    restart_policy: RestartPolicy
    default_replicas: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Defaults that differ from 1."""
    any_case: bool = True
    """Replica types may be written in any case."""
    options: tuple[str, ...] = ()
    """The fields of elastic.api.job.KindOptions that this kind's spec has."""
    columns: tuple[str, ...] = ("State", "Age")
    """Printer columns in upstream's order."""
    framework: str
    """The label value in upstream's metrics."""
    single: tuple[str, ...] = ()
    """Types that have exactly one replica."""
    at_most_one_of: tuple[str, ...] = ()
    """Types of which there may be one replica in all."""
    required: tuple[str, ...] = ()
    """Types that must be there."""
    least_workers: int = 0
    leaders: tuple[str, ...] = ()
    """Types whose pods carry the label job-role=master."""
    worker_zero_leads: bool = False
    """Without a leader, worker 0 carries that label."""
    servers: tuple[str, ...] = ()
    """Types that hold the model, so that a worker may be lost and come back under its name."""
    native_elastic: bool = False
    """Workers may come and go while it trains; the other kinds restart at the new size."""
    has_services: bool = True
    idle: tuple[str, ...] = ()
    """Types that only wait for a launcher: where their containers name no command, the controller does."""
    role: str = ""
    """Role of the workers in a TrainJob. They are called JOB-ROLE-0-INDEX, share one headless Service, and are numbered by a label."""
    is_plain: bool = False
    """Nothing tells the pods about each other."""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def title(self) -> str:
        """Return the kind of object that users know: a TrainJob, if the job belongs to one."""
        return "TrainJob" if self.role else self.name

    @property
    def operator_name(self) -> str:
        """The value of the label operator-name."""
        return f"{self.singular}-controller"

    @property
    def a_job(self) -> str:
        """`a TFJob`, `an MPIJob`: for messages."""
        return f"{'an' if self.name[0] in 'MX' else 'a'} {self.name}"

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{GROUP}"

    def replica_type(self, word: str) -> str | None:
        """Return the canonical name for the word of the user, or None if this kind has no such type."""
        if word in self.types:
            return word
        if not self.any_case:
            return None
        return next((name for name in self.types if name.lower() == word.lower()), None)


_ALL = (
    Kind(
        name="PyTorchJob",
        plural="pytorchjobs",
        singular="pytorchjob",
        replica_key="pytorchReplicaSpecs",
        types=("Master", WORKER),
        container="pytorch",
        port_name="pytorchjob-port",
        port=23456,
        restart_policy=RestartPolicy.ON_FAILURE,
        options=("nproc_per_node",),
        framework="pytorch",
        single=("Master",),
        least_workers=1,
        leaders=("Master",),
        worker_zero_leads=True,
        native_elastic=True,
    ),
    Kind(
        name="TFJob",
        plural="tfjobs",
        singular="tfjob",
        replica_key="tfReplicaSpecs",
        types=("Chief", "Master", "PS", WORKER, "Evaluator"),
        container="tensorflow",
        port_name="tfjob-port",
        port=2222,
        restart_policy=RestartPolicy.NEVER,
        options=("success_policy", "enable_dynamic_worker"),
        framework="tensorflow",
        at_most_one_of=("Chief", "Master"),
        leaders=("Chief", "Master"),
        worker_zero_leads=True,
        servers=("PS",),
    ),
    Kind(
        name="MPIJob",
        plural="mpijobs",
        singular="mpijob",
        replica_key="mpiReplicaSpecs",
        types=("Launcher", WORKER),
        idle=(WORKER,),
        container="mpi",
        container_required=False,
        port_name="mpi-port",
        port=9999,
        restart_policy=RestartPolicy.NEVER,
        default_replicas=MappingProxyType({WORKER: 0}),
        any_case=False,
        options=(
            "slots_per_worker",
            "clean_pod_policy",
            "main_container",
            "mpi_transport",
            "mpi_implementation",
            "ssh_auth_mount_path",
            "run_launcher_as_worker",
            "launcher_creation_policy",
        ),
        columns=("Age", "State"),
        framework="mpi",
        single=("Launcher",),
        required=("Launcher",),
        leaders=("Launcher",),
        native_elastic=True,
        has_services=False,
    ),
    Kind(
        name="XGBoostJob",
        plural="xgboostjobs",
        singular="xgboostjob",
        replica_key="xgbReplicaSpecs",
        types=("Master", WORKER),
        container="xgboost",
        port_name="xgboostjob-port",
        port=9999,
        restart_policy=RestartPolicy.NEVER,
        framework="xgboost",
        single=("Master",),
        required=("Master",),
        leaders=("Master",),
    ),
    Kind(
        name="PaddleJob",
        plural="paddlejobs",
        singular="paddlejob",
        replica_key="paddleReplicaSpecs",
        types=("Master", WORKER),
        container="paddle",
        port_name="master",
        port=36543,
        restart_policy=RestartPolicy.ON_FAILURE,
        framework="paddle",
        leaders=("Master",),
    ),
    Kind(
        name="JAXJob",
        plural="jaxjobs",
        singular="jaxjob",
        replica_key="jaxReplicaSpecs",
        types=(WORKER,),
        container="jax",
        port_name="jaxjob-port",
        port=6666,
        restart_policy=RestartPolicy.NEVER,
        framework="jax",
        worker_zero_leads=True,
    ),
    Kind(
        name="MXJob",
        plural="mxjobs",
        singular="mxjob",
        replica_key="mxReplicaSpecs",
        types=("Scheduler", "Server", WORKER, "TunerTracker", "TunerServer", "Tuner"),
        container="mxnet",
        port_name="mxjob-port",
        port=9091,
        restart_policy=RestartPolicy.NEVER,
        options=("job_mode",),
        framework="mxnet",
        at_most_one_of=("Scheduler",),
        leaders=("Server",),
    ),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL})

TORCH_NODES = replace(
    KINDS["PyTorchJob"], container="node", role="node", port_name="pytorchjob-port", port=29500, has_services=False, worker_zero_leads=False
)
"""Nodes of a TrainJob with the policy torch. This kind and the next one are never served: the API has them as PyTorchJobs."""
PLAIN_NODES = replace(TORCH_NODES, native_elastic=False, is_plain=True)
"""Nodes of a TrainJob without a policy."""
MPI_NODES = replace(KINDS["MPIJob"], container="node", role="node")
"""Launcher and nodes of a TrainJob with the policy mpi, which the API has as an MPIJob."""
DATASET_INITIALIZER, MODEL_INITIALIZER = "dataset-initializer", "model-initializer"
INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
"""Steps of a TrainJob before its nodes start, by Kubeflow Trainer's names, which their containers have too."""
LOWERED = {"torch": TORCH_NODES, "plain": PLAIN_NODES, "mpi": MPI_NODES} | {
    step: replace(PLAIN_NODES, container=step, role="") for step in INITIALIZERS
}
"""The kinds of the jobs that TrainJobs own, by the value of the annotation POLICY."""
OWNED = tuple(dict.fromkeys(KINDS[kind.name] for kind in LOWERED.values()))
"""The same kinds as the API has them."""
POLICY = "elastic-training/policy"
TRAIN_JOBS = "trainer.kubeflow.org"


def as_owned(kind: Kind, metadata: object) -> Kind:
    """Return the kind of a job with this metadata, which differs from `kind` if a TrainJob owns it."""
    owner = controller_of(metadata)
    if not isinstance(metadata, dict) or owner is None or (owner.kind, owner.group) != ("TrainJob", TRAIN_JOBS):
        return kind
    annotations = metadata.get("annotations")
    word = annotations.get(POLICY) if isinstance(annotations, dict) else None
    found = LOWERED.get(word) if isinstance(word, str) else None
    return found if found is not None and found.name == kind.name else kind
