"""Use the package kubeflow-training with a job of each kind, as its users do: `sdk_client.py KUBECONFIG`.

It runs in an environment that has that package and nothing of ours. For each kind it prints one line of JSON with what it saw.
"""

import json
import sys

from kubeflow.training import TrainingClient, models

POLL_S = 1
WAIT_S = 180
CONTAINERS = {"XGBoostJob": "xgboost", "PaddleJob": "paddle", "JAXJob": "jax", "MPIJob": "mpi"}
REPLICAS = {
    "XGBoostJob": ("xgbReplicaSpecs", {"Master": 1, "Worker": 1}),
    "PaddleJob": ("paddleReplicaSpecs", {"Worker": 2}),
    "JAXJob": ("jaxReplicaSpecs", {"Worker": 2}),
    "MPIJob": ("mpiReplicaSpecs", {"Launcher": 1, "Worker": 1}),
}


def train_with_torch():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print(f"sum of ranks {total.item():.0f} over {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


def tell_cluster():
    import json
    import os

    print("cluster of", sorted(json.loads(os.environ["TF_CONFIG"])["cluster"]), flush=True)


def written(kind: str, name: str) -> object:
    """Return a job as an object of the package's own types. Its processes only print their names."""
    field, counts = REPLICAS[kind]
    container = {"name": CONTAINERS[kind], "image": "example.com/ours", "command": ["sh", "-c", "echo I am $HOSTNAME"]}
    specs = {
        type: {"replicas": count, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
        for type, count in counts.items()
    }
    if kind == "MPIJob":
        waiting = {key: value for key, value in container.items() if key != "command"}
        specs["Worker"]["template"] = {"spec": {"containers": [waiting]}}
    spec = {"runPolicy": {"cleanPodPolicy": "None"}, field: specs}  # keeps the pods, so that the workers' logs can be read
    model = getattr(models, f"KubeflowOrgV1{kind}")
    return model(api_version="kubeflow.org/v1", kind=kind, metadata=models.V1ObjectMeta(name=name), spec=spec)


def lead_through(client: TrainingClient, kind: str) -> dict:
    name = f"sdk-{kind.lower()}"
    if kind == "PyTorchJob":
        client.create_job(name=name, job_kind=kind, base_image="example.com/ours", train_func=train_with_torch, num_workers=2)
    elif kind == "TFJob":
        client.create_job(name=name, job_kind=kind, base_image="example.com/ours", train_func=tell_cluster, num_workers=2)
    else:
        client.create_job(written(kind, name))
    client.wait_for_job_conditions(name, job_kind=kind, wait_timeout=WAIT_S, polling_interval=POLL_S)
    pods = client.get_job_pod_names(name)
    logs, events = client.get_job_logs(name, job_kind=kind, is_master=False, verbose=True)
    seen = {
        "succeeded": client.is_job_succeeded(name, job_kind=kind),
        "conditions": [condition.type for condition in client.get_job_conditions(name, job_kind=kind)],
        "pods": sorted(pods),
        "logs": logs,
        "events": sorted(events),
        "listed": [job.metadata.name for job in client.list_jobs(job_kind=kind)],
    }
    client.delete_job(name, job_kind=kind)
    seen["left"] = [job.metadata.name for job in client.list_jobs(job_kind=kind)]
    return seen


def main() -> None:
    for kind in ("PyTorchJob", "TFJob", *REPLICAS):
        print(json.dumps({"kind": kind, **lead_through(TrainingClient(config_file=sys.argv[1], job_kind=kind), kind)}), flush=True)


if __name__ == "__main__":
    main()
