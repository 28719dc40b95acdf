"""Name the members of an MPI job for both transports: launcher, workers, and the config map that lists them."""

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.deciding.replicas import replica_slots
from elastic_training.controller.facts.snapshot import Snapshot

LAUNCHER = "Launcher"
CONFIG_VOLUME, CONFIG_PATH = "mpi-job-config", "/etc/mpi"
EXECUTABLE, READABLE = 0o555, 0o444


def launcher_name(job: Job) -> str:
    return pod_name(job.kind, job.metadata.name, LAUNCHER, 0)


def workers(view: JobView) -> list[str]:
    """Return the pod names of the workers that should exist."""
    return [pod_name(view.job.kind, view.job.metadata.name, WORKER, index) for index in replica_slots.of_hosts(view)]


def running_workers(view: JobView) -> list[str]:
    """Return the workers that run and stay. A worker that leaves is off the list before it ends."""
    wanted = set(workers(view))
    return sorted(pod.name for pod in view.snapshot.pods if pod.is_active and pod.name in wanted)


def owned_workers(snapshot: Snapshot) -> list[str]:
    """Return the existing worker pods that belong to this job. A name alone may be that of another job's pod."""
    return [pod.name for pod in sorted(snapshot.pods, key=lambda pod: pod.index) if pod.type == WORKER.lower()]


def metadata(job: Job, name: str) -> Object:
    return owned_metadata(job, name, labels={"app": job.metadata.name})


def config_map(job: Job, files: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(job, f"{job.metadata.name}-config"), "data": files}


def with_config(spec: Object, job: Job, modes: dict[str, int]) -> None:
    """Put these files of the config map into the first container of a pod's spec."""
    items = [{"key": name, "path": name, "mode": mode} for name, mode in modes.items()]
    source = {"name": f"{job.metadata.name}-config", "items": items}
    with_volume(spec, {"name": CONFIG_VOLUME, "configMap": source}, at=CONFIG_PATH)


def with_volume(spec: Object, volume: Object, *, at: str) -> None:
    first = spec["containers"][0]
    first["volumeMounts"] = [*(first.get("volumeMounts") or ()), {"name": volume["name"], "mountPath": at}]
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
