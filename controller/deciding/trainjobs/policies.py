"""Give the nodes of a TrainJob the environment of its policy: how they find each other."""

from collections.abc import Iterator
from typing import Any

from elastic.api.job import Object
from elastic.api.names import NODE_NUMBER
from elastic.api.trainer.runtime import MLPolicy
from elastic_training.controller.deciding.trainjobs import nodes

TORCH, MPI, JAX, XGBOOST, FLUX, PLAIN = "torch", "mpi", "jax", "xgboost", "flux", "plain"
OPEN_MPI = ("orte_default_hostfile", "plm_rsh_args", "orte_keep_fqdn_hostnames", "orte_set_default_slots")
RESERVED = {
    TORCH: ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    MPI: tuple(f"OMPI_MCA_{name}" for name in OPEN_MPI),
    XGBOOST: ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"),
}
"""Variables that a TrainJob may not set."""
TRAINER_PORT = 29500
"""Port of the first node, on which the others find it."""
NUMBER = {"fieldRef": {"fieldPath": f"metadata.labels['{NODE_NUMBER}']"}}


def name(policy: MLPolicy | None) -> str:
    """Return the policy that a runtime has. The API allows one."""
    return next((word for word in (TORCH, MPI, JAX, XGBOOST, FLUX) if getattr(policy, word, None) is not None), PLAIN)


def environment(policy: str, *, job: str, count: int, pod: Object) -> list[Object]:
    """Return the variables of each node. torch has none here, because its nodes meet at our rendezvous."""
    return list(_variables(policy, first_node(job), count, pod))


def first_node(job: str) -> str:
    """Return the name by which the nodes of a TrainJob reach the first one."""
    return f"{job}-{nodes.NODE}-0-0.{job}"


def _variables(policy: str, first: str, count: int, pod: Object) -> Iterator[Object]:
    if policy == JAX:
        yield _variable("JAX_NUM_PROCESSES", count)
        yield {"name": "JAX_PROCESS_ID", "valueFrom": NUMBER}
        yield _variable("JAX_COORDINATOR_ADDRESS", f"{first}:{TRAINER_PORT}")
        yield _variable("JAX_COORDINATOR_PORT", TRAINER_PORT)
        yield _variable("JAX_DISTRIBUTED_BACKEND", "gloo")
    elif policy == XGBOOST:
        yield _variable("DMLC_TRACKER_URI", first)
        yield _variable("DMLC_TRACKER_PORT", TRAINER_PORT)
        yield {"name": "DMLC_TASK_ID", "valueFrom": NUMBER}
        yield _variable("DMLC_NUM_WORKER", count * max(1, nodes.gpus(pod)))


def _variable(name: str, value: Any) -> Object:
    return {"name": name, "value": str(value)}
