"""Build the pod and the service of one replica from the user's template. The framework adds what its processes need to find each other.

The same job and settings always give the same bytes.
"""

from msgspec import json

from elastic.api import names
from elastic.api.job import Job, Object, ReplicaSpec
from elastic.api.kinds import WORKER
from elastic.api.template import default_container, ports, with_default_port
from elastic.api.words import RestartPolicy
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.objects.elsewhere import elsewhere
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.deciding.objects.pod_group import with_group
from elastic_training.controller.deciding.rendezvous import trainer_status
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.worker_library import secret_name
from elastic_training.controller.deciding.replicas import spare_workers
from elastic_training.controller.deciding.replicas.pod_revision import group_of, marked
from elastic_training.controller.frameworks import FRAMEWORKS
from elastic_training.controller.frameworks.protocol import Replica


def replica_name(job: Job, type: str, index: int) -> str:
    return names.pod_name(job.kind, job.metadata.name, type, index)


def pod_for(view: JobView, type: str, index: int) -> Object:
    """Return the pod of one replica, ready to be created."""
    job, spec = view.job, view.job.replicas[type]
    # A copy by JSON takes a third of the time of a deep copy.
    template = json.decode(json.encode(with_default_port(spec.template, job.kind)))
    written = template.get("metadata") or {}
    metadata = owned_metadata(job, replica_name(job, type, index))
    free = {label: value for label, value in (written.get("labels") or {}).items() if not names.is_reserved(label)}
    metadata["labels"] = {**free, **names.pod_labels(job, type, index)}
    for field in ("annotations", "finalizers"):
        if written.get(field):
            metadata[field] = written[field]
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    pod["spec"]["restartPolicy"] = _restart_policy(view, spec)
    pod = FRAMEWORKS[job.kind.name].configure_pod(view, pod, Replica(type, index))
    pod = trainer_status.with_reports(view, pod, place=f"{type.lower()}-{index}", secret=secret_name(job))
    if view.backend is RendezvousBackend.STORE:
        # With the library, its agent says how a worker failed; a pod of a user's own rendezvous stays as upstream makes it.
        default_container(pod, job.kind).setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    pod = spare_workers.marked(view, elsewhere(view, pod), index) if type == WORKER else elsewhere(view, pod)
    return marked(with_group(job, pod, type, view.snapshot.settings), group_of(view))


def _restart_policy(view: JobView, spec: ReplicaSpec) -> str:
    """Return the pod's policy. A pod knows neither ExitCode nor groups: the controller then restarts it, not the kubelet."""
    is_ours = spec.restart_policy is RestartPolicy.EXIT_CODE or view.restarts_as_a_whole
    return "Never" if is_ours else spec.restart_policy.value


def service_for(job: Job, type: str, index: int, *, also_unready: bool = False) -> Object:
    """Return the service that lets a replica's peers resolve its name, `also_unready` if they meet before they can be ready."""
    labels = names.replica_labels(job.kind, job.metadata.name, type, index)
    opened = ports(job.replicas[type].template, job.kind)
    spec = {"clusterIP": "None", "selector": labels, "ports": [{"name": name, "port": port} for name, port in opened.items()]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(job, replica_name(job, type, index), labels=labels),
        "spec": spec | ({"publishNotReadyAddresses": True} if also_unready else {}),
    }
