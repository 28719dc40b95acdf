"""Make the objects that serve TrainJobs: the runtimes, and the ConfigMap that tells clients the version."""

from __future__ import annotations

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
}


def objects() -> list[Object]:
    """Return the namespace, the ConfigMap with the rights to read it, and the runtimes."""
    distributed = [_runtime(f"{word}-distributed", word, {"numNodes": 1, word: {}}) for word in ("torch", "jax", "xgboost")]
    return [*_public(), *distributed, _runtime("plain", "plain", {"numNodes": 1})]


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
