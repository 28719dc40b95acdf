"""MPI as version v1 has it: workers that wait, and a launcher that starts processes in them through the API server's exec."""

from collections.abc import Iterator

from controller.frameworks.environment import Variable, variable, with_environment
from controller.frameworks.mpi_hosts import (
    CONFIG_PATH,
    CONFIG_VOLUME,
    EXECUTABLE,
    LAUNCHER,
    READABLE,
    config_map,
    launcher_name,
    metadata,
    running_workers,
    with_config,
    with_volume,
    workers,
)
from controller.snapshot import Snapshot
from elastic.api.job import Job, Object

KUBECTL_VOLUME, KUBECTL_PATH = "mpi-job-kubectl", "/opt/kube"


def launcher(job: Job, pod: Object, snapshot: Snapshot) -> Object:
    spec = pod["spec"]
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = launcher_name(job)
    mounts = [{"name": KUBECTL_VOLUME, "mountPath": KUBECTL_PATH}, {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH}]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), _delivery(job, mounts, snapshot)]
    first = spec["containers"][0]
    with_environment({"spec": {"containers": [first]}}, _environment(job, first))
    with_volume(spec, {"name": KUBECTL_VOLUME, "emptyDir": {}}, at=KUBECTL_PATH)
    with_config(spec, job, {"kubexec.sh": EXECUTABLE, "hostfile": READABLE, "discover_hosts.sh": EXECUTABLE})
    return pod


def worker(job: Job, pod: Object) -> Object:
    first = pod["spec"]["containers"][0]
    if not first.get("command"):
        first["command"], first["args"] = ["sleep"], ["365d"]
    with_config(pod["spec"], job, {"kubexec.sh": EXECUTABLE})
    return pod


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


def objects(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    account = job.replicas[LAUNCHER].template["spec"].get("serviceAccountName")
    rbac = "rbac.authorization.k8s.io"
    # A WebSocket begins with a GET, and our own client in the launcher, as any of today, knows nothing older.
    settings = snapshot.settings
    exec_verbs = ["create"] if settings.strict and not settings.kubectl_command else ["create", "get"]
    if not account:
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(job, launcher_name(job))}
    yield config_map(
        job, {"hostfile": _hostfile(job, snapshot), "kubexec.sh": _kubexec(job), "discover_hosts.sh": _discover(job, snapshot)}
    )
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "Role",
        "metadata": metadata(job, launcher_name(job)),
        "rules": [
            {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": exec_verbs, "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": workers(job, snapshot)},
        ],
    }
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, launcher_name(job)),
        "subjects": [{"kind": "ServiceAccount", "name": account or launcher_name(job), "namespace": job.metadata.namespace}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": launcher_name(job)},
    }


def _hostfile(job: Job, snapshot: Snapshot) -> str:
    slots, hosts = job.options.slots_per_worker, workers(job, snapshot)
    if _launcher_has_gpu(job):
        hosts = [launcher_name(job), *hosts]
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def _kubexec(job: Job) -> str:
    container = f" --container {job.options.main_container}" if job.options.main_container else ""
    return f'#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n/opt/kube/kubectl exec ${{POD_NAME}}{container} -- /bin/sh -c "$*"'


def _discover(job: Job, snapshot: Snapshot) -> str:
    """The hosts that elastic Horovod may use now."""
    slots = job.options.slots_per_worker
    script = "#!/bin/sh"
    if _launcher_has_gpu(job):
        script += f"\necho {launcher_name(job)}:{slots}\n"
    return script + "".join(f"\necho {name}:{slots}" for name in running_workers(job, snapshot))
