"""MPI as version v1 has it: workers that wait, and a launcher that starts processes in them through the API server's exec."""

from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.frameworks import mpi_discovery
from elastic_training.controller.frameworks.environment import Variable, variable, with_environment, with_missing
from elastic_training.controller.frameworks.mpi_hosts import (
    CONFIG_PATH,
    CONFIG_VOLUME,
    EXECUTABLE,
    LAUNCHER,
    READABLE,
    config_map,
    launcher_name,
    metadata,
    owned_workers,
    running_workers,
    with_config,
    with_volume,
    workers,
)
from elastic_training.rendezvous.delivery import restricted

KUBECTL_VOLUME, KUBECTL_PATH = "mpi-job-kubectl", "/opt/kube"
REMOTE_SHELL, HOSTS, HYDRA_HOSTS = f"{CONFIG_PATH}/kubexec.sh", f"{CONFIG_PATH}/hostfile", f"{CONFIG_PATH}/hostfile.hydra"
FAN_OUT = 4096
"""The most daemons that mpirun starts itself. Above its default (64), workers would start daemons in others, but they may not exec."""
POD_INTERFACE = "eth0"
"""A container's own interface is called so by every runtime; a pod in its node's network has others, and a name that can be found."""


def launcher(job: Job, pod: Object, settings: Settings) -> Object:
    spec = pod["spec"]
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = launcher_name(job)
    mounts = [{"name": KUBECTL_VOLUME, "mountPath": KUBECTL_PATH}, {"name": CONFIG_VOLUME, "mountPath": CONFIG_PATH}]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), _delivery(job, spec, mounts, settings)]
    first = spec["containers"][0]
    with_environment({"spec": {"containers": [first]}}, _environment(job, first))
    with_missing(pod, _of_other_implementations(job, spec), only=first["name"])
    files = {"kubexec.sh": EXECUTABLE, "hostfile": READABLE, "discover_hosts.sh": EXECUTABLE, "hostfile.hydra": READABLE}
    with_volume(spec, {"name": KUBECTL_VOLUME, "emptyDir": {}}, at=KUBECTL_PATH)
    with_config(spec, job, files)
    return pod


def worker(job: Job, pod: Object) -> Object:
    first = pod["spec"]["containers"][0]
    if not first.get("command"):
        first["command"], first["args"] = ["sleep"], ["365d"]
    with_config(pod["spec"], job, {"kubexec.sh": EXECUTABLE})
    return pod


def _delivery(job: Job, spec: Object, mounts: list[Object], settings: Settings) -> Object:
    """Return the init container that brings the program for kubexec.sh and waits for workers. Ours waits for only minReplicas of them."""
    resources = {"cpu": "100m", "ephemeral-storage": "5Gi", "memory": "512Mi"}
    command = settings.kubectl_command
    least = ["--least", str(job.least_workers)] if job.elastic is not None else []
    return {
        "name": "kubectl-delivery",
        "image": settings.kubectl_image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": [*command, *least], "securityContext": restricted(spec)} if command else {}),
        "env": [variable("TARGET_DIR", KUBECTL_PATH), variable("NAMESPACE", job.metadata.namespace)],
        "volumeMounts": mounts,
        "resources": {"limits": dict(resources), "requests": dict(resources)},
    }


def _environment(job: Job, container: Object) -> Iterator[Variable]:
    yield variable("OMPI_MCA_plm_rsh_agent", REMOTE_SHELL)
    yield variable("OMPI_MCA_orte_default_hostfile", HOSTS)
    if not mpi_discovery.launcher_has_gpu(job):
        # The launcher may run on a node with GPUs without having asked for one; it must not see them.
        yield variable("NVIDIA_VISIBLE_DEVICES", "")
        yield variable("NVIDIA_DRIVER_CAPABILITIES", "")
    own = {entry.get("name") for entry in container.get("env") or ()}
    for name, value in (("I_MPI_HYDRA_BOOTSTRAP", "rsh"), ("I_MPI_HYDRA_BOOTSTRAP_EXEC", REMOTE_SHELL)):
        if name not in own:
            yield variable(name, value)


def _of_other_implementations(job: Job, spec: Object) -> Iterator[Variable]:
    """Yield the variables that upstream leaves out. Without hosts, mpirun would start all ranks in the launcher and succeed."""
    yield variable("OMPI_MCA_routed_radix", FAN_OUT)
    # Open MPI 5 reads none of the names of version 4.
    yield variable("PRTE_MCA_plm_ssh_agent", REMOTE_SHELL)
    yield variable("PRTE_MCA_prte_default_hostfile", HOSTS)
    yield variable("PRTE_MCA_rml_base_radix", FAN_OUT)
    # For Intel MPI, 0 means as many as there are hosts. It does not read the numbers in its host file.
    yield variable("I_MPI_HYDRA_HOST_FILE", HYDRA_HOSTS)
    yield variable("I_MPI_PERHOST", job.options.slots_per_worker)
    yield variable("I_MPI_HYDRA_BRANCH_COUNT", 0)
    # MPICH
    yield variable("HYDRA_LAUNCHER", "rsh")
    yield variable("HYDRA_LAUNCHER_EXEC", REMOTE_SHELL)
    yield variable("HYDRA_HOST_FILE", HYDRA_HOSTS)
    if not spec.get("hostNetwork"):
        # In both, workers connect to the launcher by its name, which they cannot resolve; with an interface they use its address.
        yield variable("I_MPI_HYDRA_IFACE", POD_INTERFACE)
        yield variable("HYDRA_IFACE", POD_INTERFACE)


def objects(view: JobView) -> Iterator[Object]:
    job, snapshot = view.job, view.snapshot
    account = job.replicas[LAUNCHER].template["spec"].get("serviceAccountName")
    rbac = "rbac.authorization.k8s.io"
    # A WebSocket begins with a GET, and our own client in the launcher, as any of today, knows nothing older.
    owned = owned_workers(snapshot)
    in_workers = {"verbs": ["create", "get"], "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": owned}
    if not account:
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(job, launcher_name(job))}
    yield config_map(job, _files(view))
    if not has_rights(view):
        return
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "Role",
        "metadata": metadata(job, launcher_name(job)),
        "rules": [
            {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]},
            # Without any name the rule would hold for all pods there are.
            *([in_workers] if owned else ()),
        ],
    }
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, launcher_name(job)),
        "subjects": [{"kind": "ServiceAccount", "name": account or launcher_name(job), "namespace": job.metadata.namespace}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": launcher_name(job)},
    }


def has_rights(view: JobView) -> bool:
    """Return whether the launcher and its rights can be created. Its Role names existing pods, so the first workers come before it."""
    there = view.snapshot.find("Role", launcher_name(view.job))
    return there is not None or bool(owned_workers(view.snapshot)) or not workers(view)


def _files(view: JobView) -> dict[str, str]:
    job = view.job
    return {
        "hostfile": _hostfile(view, " slots="),
        "kubexec.sh": _kubexec(job),
        "discover_hosts.sh": mpi_discovery.script(view) if mpi_discovery.is_chosen(view) else _discover(view),
        "hostfile.hydra": _hostfile(view, ":"),
    }


def _hostfile(view: JobView, between: str) -> str:
    job, hosts = view.job, workers(view)
    if mpi_discovery.launcher_has_gpu(job):
        hosts = [launcher_name(job), *hosts]
    return "".join(f"{host}{between}{job.options.slots_per_worker}\n" for host in hosts)


def _kubexec(job: Job) -> str:
    """Return a script that becomes the client, so that signals reach it. It names the container, because a pod may have others."""
    templates = (spec.template for type, spec in job.replicas.items() if type == WORKER)
    container = job.options.main_container or next((template["spec"]["containers"][0]["name"] for template in templates), "")
    command = f'exec /opt/kube/kubectl exec ${{POD_NAME}} --container {container} -- /bin/sh -c "$*"'
    return f"#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n{command}"


def _discover(view: JobView) -> str:
    """Return a script that prints the hosts that elastic Horovod may use, as upstream lists them."""
    job, slots = view.job, view.job.options.slots_per_worker
    script = "#!/bin/sh"
    if mpi_discovery.launcher_has_gpu(job):
        script += f"\necho {launcher_name(job)}:{slots}\n"
    return script + "".join(f"\necho {name}:{slots}" for name in running_workers(view))
