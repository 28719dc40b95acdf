"""PyTorch: static jobs by MASTER_ADDR and RANK, elastic jobs by torchrun's PET_* variables.

The rendezvous of the control plane itself is put into a pod by rendezvous.delivery; this module decides which pods get it.
"""

from collections.abc import Iterator, Sequence

from elastic.api.job import ElasticPolicy, Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import host_name, pod_name
from elastic.api.rendezvous_choice import ETCDS
from elastic.api.template import training_port
from elastic.api.words import RdzvBackend
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous import c10d_store, etcd, readiness, worker_library
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend, backend_in_use
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Snapshot
from elastic_training.controller.frameworks import train_jobs
from elastic_training.controller.frameworks.environment import Variable, variable, with_environment, with_missing
from elastic_training.controller.frameworks.protocol import Framework, Replica, total
from elastic_training.rendezvous.delivery import init_container

MASTER = "Master"
INIT_CONTAINER = "init-pytorch"


class PyTorch(Framework):
    has_selector = True

    def backend(self, job: Job, settings: Settings) -> RendezvousBackend:
        return backend_in_use(job, settings)

    def has_interchangeable_workers(self, job: Job) -> bool:
        """Workers that meet at an etcd of the user's own; in torch's own c10d worker 0 is the host of the others."""
        return job.elastic is not None and job.elastic.rdzv_backend in ETCDS

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        job, backend = view.job, view.backend
        if job.kind.role:
            pod = train_jobs.as_node(job, pod)
        if job.kind.is_plain:
            return pod
        pod = with_environment(pod, environment(job, replica, backend=backend))
        if backend.needs_library:
            return readiness.gated(view, worker_library.delivered(view, pod, replica.index))
        if backend is RendezvousBackend.STORE:
            return with_missing(pod, c10d_store.environment(job, view.snapshot), only=job.kind.container)
        if MASTER in job.replicas and replica.type == WORKER:
            pod["spec"]["initContainers"] = [*(pod["spec"].get("initContainers") or ()), _waits_for_master(job, pod, view.snapshot)]
        return pod

    def leader_type(self, job: Job) -> str | None:
        return MASTER if MASTER in job.replicas else None

    def objects(self, view: JobView) -> Sequence[Object]:
        return [train_jobs.service(view.job)] if view.job.kind.role else []


def environment(job: Job, replica: Replica, *, backend: RendezvousBackend = RendezvousBackend.NONE) -> Iterator[Variable]:
    everybody = total(job)
    yield variable("PYTHONUNBUFFERED", 1)
    if MASTER in job.replicas:
        port = training_port(job.replicas[MASTER].template, job.kind)
        address = pod_name(job.kind, job.metadata.name, MASTER, 0)
        rank = replica.index if replica.type == MASTER else replica.index + 1
        yield variable("MASTER_PORT", port)
        yield variable("PET_MASTER_PORT", port)
        yield variable("MASTER_ADDR", address)
        yield variable("PET_MASTER_ADDR", address)
        yield variable("WORLD_SIZE", everybody * _processes(job))
        yield variable("RANK", rank)
        yield variable("PET_NODE_RANK", rank)
    per_node = processes_per_node(job)
    if per_node is not None:
        yield variable("PET_NPROC_PER_NODE", per_node)
    if job.elastic is None:
        yield variable("PET_NNODES", everybody)
    else:
        yield from _elastic(job, job.elastic, backend=backend)


def processes_per_node(job: Job) -> str | None:
    if job.options.nproc_per_node is not None:
        return job.options.nproc_per_node
    return None if job.elastic is not None and job.elastic.n_proc_per_node is not None else "auto"


def _processes(job: Job) -> int:
    """Upstream counts auto, cpu and gpu as one process per pod; torchrun sets the true world size itself."""
    word = processes_per_node(job) or ""
    return int(word) if word.isdecimal() else 1


def _elastic(job: Job, policy: ElasticPolicy, *, backend: RendezvousBackend) -> Iterator[Variable]:
    """Yield upstream's variables, which make worker 0 the host of torch's own rendezvous unless the user names another host.

    For other places to meet, the variables that are added later say where.
    """
    host = policy.rdzv_host or host_name(job.kind, job.metadata.name, WORKER, 0)
    port = policy.rdzv_port or training_port(job.replicas[WORKER].template, job.kind)
    least, most = job.bounds
    spoken = RdzvBackend.C10D if policy.rdzv_backend in (None, RdzvBackend.ELASTIC) else policy.rdzv_backend
    if backend is RendezvousBackend.NONE:
        yield variable("PET_RDZV_ENDPOINT", f"{host}:{port}")
        yield variable("PET_RDZV_BACKEND", spoken.value)
    # Scripts for Kubeflow Trainer read one number.
    yield variable("PET_NNODES", least if job.kind.role and least == most else f"{least}:{most}")
    if policy.max_restarts is not None:
        yield variable("PET_MAX_RESTARTS", policy.max_restarts)
    if policy.n_proc_per_node is not None:
        yield variable("PET_NPROC_PER_NODE", policy.n_proc_per_node)
    if policy.rdzv_id is not None and backend is RendezvousBackend.NONE:
        yield variable("PET_RDZV_ID", policy.rdzv_id)
    conf = etcd.conf(job) if backend is RendezvousBackend.ETCD else [(entry.key, entry.value) for entry in policy.rdzv_conf]
    if conf and backend is not RendezvousBackend.STORE:
        yield variable("PET_RDZV_CONF", ",".join(f"{key}={value}" for key, value in conf))
    if policy.standalone:
        yield variable("PET_STANDALONE", "")


def _waits_for_master(job: Job, pod: Object, snapshot: Snapshot) -> Object:
    """Return the init container of a static worker, whose processes give up if the master's name does not resolve yet."""
    master = pod_name(job.kind, job.metadata.name, MASTER, 0)
    settings = snapshot.settings
    if settings.init_command:
        command = (*settings.init_command, master)
        return init_container(INIT_CONTAINER, image=settings.init_image, command=command, spec=pod["spec"])
    script = (
        f"err=1;for i in $(seq {settings.init_tries}); do if nslookup {master}; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": INIT_CONTAINER,
        "image": settings.init_image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}},
        "command": ["sh", "-c", script],
    }
