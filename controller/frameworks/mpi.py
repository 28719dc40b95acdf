"""MPI as version v1 has it: workers that wait, and a launcher that starts processes in them through the API server's exec.
A config map tells the launcher who the workers are: `hostfile` those that should be, `discover_hosts.sh` those that run and stay.
"""

from collections.abc import Iterator, Mapping, Sequence

from controller.frameworks.environment import Variable, variable, with_environment
from controller.frameworks.protocol import Framework, Replica
from controller.ownership import owned_metadata
from controller.replicas import Tally
from controller.snapshot import Pod, Snapshot
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name

LAUNCHER = "Launcher"
KUBECTL_VOLUME, CONFIG_VOLUME = "mpi-job-kubectl", "mpi-job-config"
KUBECTL_PATH, CONFIG_PATH = "/opt/kube", "/etc/mpi"
EXECUTABLE, READABLE = 0o555, 0o444


class Mpi(Framework):
    # Upstream doubles the word when a pod's end ends the job; clients compare it.
    failed_reason = "MPIJobFailed"

    def dress(self, job: Job, pod: Object, replica: Replica, snapshot: Snapshot) -> Object:
        return _launcher(job, pod, snapshot) if replica.type == LAUNCHER else _worker(job, pod)

    def head(self, job: Job) -> str | None:
        return LAUNCHER

    def shown(self, job: Job, counts: Mapping[str, Tally]) -> Mapping[str, Tally]:
        """Once the launcher has ended nobody counts the workers any more: they wait for a call that will not come."""
        launcher = counts.get(LAUNCHER)
        if launcher is None or not (launcher.succeeded or launcher.failed):
            return counts
        return {type: count if type == LAUNCHER else Tally() for type, count in counts.items()}

    def objects(self, job: Job, snapshot: Snapshot) -> Sequence[Object]:
        return tuple(_objects(job, snapshot))


def _name(job: Job) -> str:
    return f"{job.metadata.name}-launcher"


def _workers(job: Job) -> list[str]:
    count = job.replicas[WORKER].replicas if WORKER in job.replicas else 0
    return [pod_name(job.kind, job.metadata.name, WORKER, index) for index in range(count)]


def _launcher(job: Job, pod: Object, snapshot: Snapshot) -> Object:
    spec = pod["spec"]
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = _name(job)
    mounts = [{"name": KUBECTL_VOLUME, "mountPath": KUBECTL_PATH}, {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH}]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), _delivery(job, mounts, snapshot)]
    first = spec["containers"][0]
    with_environment({"spec": {"containers": [first]}}, _environment(job, first))
    first["volumeMounts"] = [*(first.get("volumeMounts") or ()), *mounts]
    items = [
        {"key": "kubexec.sh", "path": "kubexec.sh", "mode": EXECUTABLE},
        {"key": "hostfile", "path": "hostfile", "mode": READABLE},
        {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": EXECUTABLE},
    ]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": KUBECTL_VOLUME, "emptyDir": {}}, _config_volume(job, items)]
    return pod


def _worker(job: Job, pod: Object) -> Object:
    spec = pod["spec"]
    first = spec["containers"][0]
    if not first.get("command"):
        first["command"], first["args"] = ["sleep"], ["365d"]
    first["volumeMounts"] = [*(first.get("volumeMounts") or ()), {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH}]
    items = [{"key": "kubexec.sh", "path": "kubexec.sh", "mode": EXECUTABLE}]
    spec["volumes"] = [*(spec.get("volumes") or ()), _config_volume(job, items)]
    return pod


def _config_volume(job: Job, items: list[Object]) -> Object:
    return {"name": CONFIG_VOLUME, "configMap": {"name": f"{job.metadata.name}-config", "items": items}}


def _delivery(job: Job, mounts: list[Object], snapshot: Snapshot) -> Object:
    """Brings the program that kubexec.sh calls."""
    resources = {"cpu": "100m", "ephemeral-storage": "5Gi", "memory": "512Mi"}
    command = snapshot.settings.kubectl_command
    return {
        "name": "kubectl-delivery",
        "image": snapshot.settings.kubectl_image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": list(command)} if command else {}),
        "env": [variable("TARGET_DIR", KUBECTL_PATH), variable("NAMESPACE", job.metadata.namespace)],
        "volumeMounts": mounts,
        "resources": {"limits": dict(resources), "requests": dict(resources)},
    }


def _environment(job: Job, container: Object) -> Iterator[Variable]:
    yield variable("OMPI_MCA_plm_rsh_agent", f"{CONFIG_PATH}/kubexec.sh")
    yield variable("OMPI_MCA_orte_default_hostfile", f"{CONFIG_PATH}/hostfile")
    if not _launcher_has_gpu(job):
        # The launcher may run on a node with GPUs without having asked for one; it must not see them.
        yield variable("NVIDIA_VISIBLE_DEVICES", "")
        yield variable("NVIDIA_DRIVER_CAPABILITIES", "")
    own = {entry.get("name") for entry in container.get("env") or ()}
    for name, value in (("I_MPI_HYDRA_BOOTSTRAP", "rsh"), ("I_MPI_HYDRA_BOOTSTRAP_EXEC", f"{CONFIG_PATH}/kubexec.sh")):
        if name not in own:
            yield variable(name, value)


def _launcher_has_gpu(job: Job) -> bool:
    containers = job.replicas[LAUNCHER].template["spec"]["containers"]
    return any("gpu" in name for container in containers for name in ((container.get("resources") or {}).get("limits") or {}))


def _objects(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    account = job.replicas[LAUNCHER].template["spec"].get("serviceAccountName")
    rbac = "rbac.authorization.k8s.io"
    # A WebSocket begins with a GET, and our own client in the launcher, as any of today, knows nothing older.
    settings = snapshot.settings
    exec_verbs = ["create"] if settings.strict and not settings.kubectl_command else ["create", "get"]
    if not account:
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(job, _name(job))}
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, f"{job.metadata.name}-config"),
        "data": {"hostfile": _hostfile(job), "kubexec.sh": _kubexec(job), "discover_hosts.sh": _discover(job, snapshot.pods)},
    }
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "Role",
        "metadata": _metadata(job, _name(job)),
        "rules": [
            {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": exec_verbs, "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": _workers(job)},
        ],
    }
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(job, _name(job)),
        "subjects": [{"kind": "ServiceAccount", "name": account or _name(job), "namespace": job.metadata.namespace}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": _name(job)},
    }


def _metadata(job: Job, name: str) -> Object:
    return owned_metadata(job, name, labels={"app": job.metadata.name})


def _hostfile(job: Job) -> str:
    slots = job.options.slots_per_worker
    hosts = [_name(job), *_workers(job)] if _launcher_has_gpu(job) else _workers(job)
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def _kubexec(job: Job) -> str:
    container = f" --container {job.options.main_container}" if job.options.main_container else ""
    return f'#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n/opt/kube/kubectl exec ${{POD_NAME}}{container} -- /bin/sh -c "$*"'


def _discover(job: Job, pods: Sequence[Pod]) -> str:
    """The hosts that elastic Horovod may use now: one that leaves is off the list before it goes."""
    slots, wanted = job.options.slots_per_worker, set(_workers(job))
    script = "#!/bin/sh"
    if _launcher_has_gpu(job):
        script += f"\necho {_name(job)}:{slots}\n"
    running = sorted(pod.name for pod in pods if pod.is_active and pod.name in wanted)
    return script + "".join(f"\necho {name}:{slots}" for name in running)
