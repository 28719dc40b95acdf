"""Turn a runtime with the policy mpi into an MPIJob over ssh: a launcher, and the nodes that it reaches by the job's own keys."""

from collections.abc import Iterator

from msgspec.structs import replace

from elastic.api.errors import Problem
from elastic.api.job import Object
from elastic.api.kinds import API_VERSION, WORKER
from elastic.api.trainer.runtime import Mpi
from elastic.api.trainer.train_job import ANCESTOR_TRAINER, Trainer
from elastic_training.controller.deciding.trainjobs import nodes
from elastic_training.controller.deciding.trainjobs.roles import Roles, limit

LAUNCHER = "Launcher"
"""Replica type of an MPIJob."""
OPEN_MPI = "OpenMPI"


def workers(policy: Mpi, count: int) -> int:
    """Return how many nodes there are next to the launcher, which may count as one."""
    return max(1, count - 1) if policy.run_launcher_as_node else count


def templates(name: str, roles: Roles, trainer: Trainer, policy: Mpi) -> dict[str, Object]:
    """Return the pod templates of launcher and nodes. The trainer's command belongs to the launcher; nodes get what upstream gives them."""
    assert roles.launcher is not None
    of_nodes = replace(trainer, image=None, command=None, args=None) if policy.run_launcher_as_node else Trainer()
    return {
        LAUNCHER: _first(nodes.template(name, roles.launcher, trainer, step=ANCESTOR_TRAINER)),
        WORKER: _first(nodes.template(name, roles.nodes, of_nodes, step=None)),
    }


def job(
    metadata: Object, roles: Roles, made: dict[str, Object], policy: Mpi, *, count: int, trainer: Trainer, run_policy: Object
) -> Object:
    """Return the MPIJob. `made` are its pod templates, and `count` is the number of nodes."""
    assert roles.launcher is not None
    restart = "Never" if limit(roles.launcher) == 0 else "OnFailure"
    replicas = {LAUNCHER: 1, WORKER: workers(policy, count)}
    return {
        "apiVersion": API_VERSION,
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {
            "mpiTransport": "SSH",
            "mpiImplementation": policy.mpi_implementation,
            "sshAuthMountPath": policy.ssh_auth_mount_path,
            "slotsPerWorker": _slots(policy, trainer, made[LAUNCHER]),
            "runLauncherAsWorker": policy.run_launcher_as_node,
            "launcherCreationPolicy": "WaitForWorkersReady" if _waits_for_nodes(roles) else "AtStartup",
            "runPolicy": run_policy,
            "mpiReplicaSpecs": {
                type: {"replicas": number, "restartPolicy": restart, "template": made[type]} for type, number in replicas.items()
            },
        },
    }


def problems(roles: Roles, policy: Mpi) -> Iterator[Problem]:
    """Yield the settings that an MPIJob does not support."""
    if roles.launcher is None:
        return
    if limit(roles.launcher) != limit(roles.nodes):
        message = f"backoffLimit is {limit(roles.nodes)}, but {limit(roles.launcher)} for the launcher; one limit holds for both"
        yield Problem((*roles.at, "template", "spec", "backoffLimit"), message)
    if policy.mpi_implementation != OPEN_MPI:
        yield Problem((*roles.at[:2], "spec", "mlPolicy", "mpi", "mpiImplementation"), f"mpiImplementation is empty; use {OPEN_MPI}")


def _waits_for_nodes(roles: Roles) -> bool:
    return roles.launcher is not None and any(other.name == nodes.NODE for other in roles.launcher.depends_on)


def _slots(policy: Mpi, trainer: Trainer, launcher: Object) -> int:
    """Return the number of processes of a node: by the TrainJob, else by the runtime, where 1 means one for each GPU."""
    if trainer.num_proc_per_node is not None:
        return trainer.num_proc_per_node
    return max(1, nodes.gpus(launcher)) if policy.num_proc_per_node == 1 else policy.num_proc_per_node


def _first(template: Object) -> Object:
    """Return the template with the container of the node before the others: there the MPIJob mounts keys and host file."""
    template["spec"]["containers"].sort(key=lambda container: container.get("name") != nodes.NODE)
    return template
