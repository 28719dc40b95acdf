"""Make the objects that serve TrainJobs: the runtimes, and the ConfigMap that tells clients the version."""

from __future__ import annotations

from typing import Any

from elastic.api.trainer.shapes import Object
from elastic.api.trainer.train_job import ANCESTOR, ANCESTOR_TRAINER, API_VERSION, CLUSTER_RUNTIME

NAMESPACE = "kubeflow-system"
"""Namespace in which clients look for the ConfigMap."""
SERVES = "v2.3.0"
"""Version of Kubeflow Trainer whose API is served."""
IMAGES = {
    "torch": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    "jax": "nvcr.io/nvidia/jax:25.10-py3",
    "xgboost": "ghcr.io/kubeflow/trainer/xgboost-runtime:v2.3.0",
    "plain": "python:3.13",
    "mpi": "ghcr.io/kubeflow/trainer/deepspeed-runtime:v2.3.0",
}

SSHD = "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f /dev/null -o HostKey=/root/.ssh/id_rsa -o StrictModes=no -o PidFile=none"
"""Command of the nodes of MPI. StrictModes would refuse the mode of the folder with the keys, which is a mounted Secret."""


def objects() -> list[Object]:
    """Return the namespace, the ConfigMap with the rights to read it, and the runtimes."""
    distributed = [_runtime(f"{word}-distributed", word, {"numNodes": 1, word: {}}) for word in ("torch", "jax", "xgboost")]
    return [*_public(), *distributed, _runtime("plain", "plain", {"numNodes": 1}), _mpi()]


def _mpi() -> Object:
    """Return the runtime for MPI. Its pods run as root, and sshd takes the mounted key as that of the host: an image needs no settings."""

    def job(name: str, container: Object, **more: Any) -> Object:
        pod = {"spec": {"containers": [{"name": "node", "image": IMAGES["mpi"], **container}]}}
        return {"name": name, "template": {"spec": {"template": pod}}, **more}

    ssh = "-o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    variables = {"OMPI_MCA_plm_rsh_args": ssh, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launcher = job("launcher", {"env": [{"name": name, "value": value} for name, value in variables.items()]})
    launcher["dependsOn"] = [{"name": "node", "status": "Ready"}]
    launcher["template"]["metadata"] = {"labels": {ANCESTOR: ANCESTOR_TRAINER}}
    made = _runtime("mpi-distributed", "mpi", {"numNodes": 1, "mpi": {"numProcPerNode": 1, "mpiImplementation": "OpenMPI"}})
    made["spec"]["template"]["spec"] = {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
        "replicatedJobs": [job("node", {"command": ["sh", "-c", SSHD]}), launcher],
    }
    return made


def _runtime(name: str, framework: str, policy: Object) -> Object:
    pod = {"spec": {"containers": [{"name": "node", "image": IMAGES[framework]}]}}
    job = {"name": "node", "template": {"metadata": {"labels": {ANCESTOR: ANCESTOR_TRAINER}}, "spec": {"template": pod}}}
    return {
        "apiVersion": API_VERSION,
        "kind": CLUSTER_RUNTIME,
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": framework}},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def _public() -> list[Object]:
    name, api = "kubeflow-trainer-public", "rbac.authorization.k8s.io"
    metadata = {"name": name, "namespace": NAMESPACE}
    may_read = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "list", "watch"]}
    everybody = {"apiGroup": api, "kind": "Group", "name": "system:authenticated"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"kubeflow_trainer_version": SERVES}},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": [may_read]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
            "subjects": [everybody],
        },
    ]
