"""Random jobs of every kind, static and elastic, within what `elastic validate` accepts."""

import random
from typing import Any

from elastic.api import parse
from elastic.api.job import Object
from elastic.api.kinds import KINDS, WORKER, Kind
from elastic.api.names import REPORT, REPORT_OFF

NAME = "train"
STATIC_TYPES = {
    "PyTorchJob": [{"Master": 1, "Worker": 2}, {"Worker": 3}, {"Master": 1}],
    "TFJob": [{"Worker": 3}, {"Chief": 1, "PS": 1, "Worker": 2}, {"PS": 1, "Worker": 2}, {"Master": 1, "Worker": 2, "Evaluator": 1}],
    "MPIJob": [{"Launcher": 1, "Worker": 3}],
    "XGBoostJob": [{"Master": 1, "Worker": 2}],
    "PaddleJob": [{"Worker": 3}, {"Master": 1, "Worker": 2}],
    "JAXJob": [{"Worker": 3}],
    "MXJob": [{"Scheduler": 1, "Server": 1, "Worker": 2}],
}
OPTIONS: dict[str, list[Object]] = {
    "TFJob": [{"successPolicy": "AllWorkers"}, {"enableDynamicWorker": True}],
    "MPIJob": [
        {"mpiTransport": "SSH"},
        {"mpiTransport": "SSH", "runLauncherAsWorker": True},
        {"launcherCreationPolicy": "WaitForWorkersReady"},
    ],
}


def random_job(draw: random.Random) -> Object:
    kind = KINDS[draw.choice(["PyTorchJob"] * 6 + sorted(KINDS))]
    is_elastic = draw.random() < (0.75 if kind.name == "PyTorchJob" else 0.4)
    types = {WORKER: 3} if is_elastic and kind.name == "PyTorchJob" else dict(draw.choice(STATIC_TYPES[kind.name]))
    policy = _elastic_policy(draw, kind) if is_elastic and WORKER in types else None
    if policy is not None:
        types[WORKER] = draw.randint(policy["minReplicas"], policy["maxReplicas"])
    restart = draw.choice(["OnFailure", "OnFailure", "OnFailure", "Never", "ExitCode", "Always"])
    job = job_of(kind, types, restart=restart, policy=policy, run_policy=_run_policy(draw))
    if kind.name in OPTIONS and draw.random() < 0.5:
        job["spec"] |= draw.choice(OPTIONS[kind.name])
    if draw.random() < 0.1:
        job["metadata"]["annotations"] = {REPORT: REPORT_OFF}
    parse(job)
    return job


def living_job(draw: random.Random) -> Object:
    """Return an elastic job that meets at the rendezvous server, and may lose many workers."""
    kind = KINDS["PyTorchJob"]
    policy = _elastic_policy(draw, kind) | {"maxRestarts": draw.choice([3, 1000, 1000])}
    policy.pop("rdzvBackend", None)
    workers, run_policy = draw.randint(policy["minReplicas"], policy["maxReplicas"]), _run_policy(draw)
    run_policy.pop("activeDeadlineSeconds", None)
    restart = draw.choice(["OnFailure", "OnFailure", "ExitCode", "Always"])
    job = job_of(kind, {WORKER: workers}, restart=restart, policy=policy, run_policy=run_policy)
    parse(job)
    return job


def meet_in_etcd(job: Object, draw: random.Random) -> None:
    """Let some elastic PyTorchJobs meet in an etcd of their user's; everything else about the life stays as its seed has it."""
    policy = job["spec"].get("elasticPolicy")
    if job["kind"] == "PyTorchJob" and policy is not None and "rdzvBackend" not in policy and draw.random() < 0.2:
        policy |= {"rdzvBackend": "etcd", "rdzvHost": "etcd"}
        parse(job)


def scaling_of(job: Object) -> Object | None:
    """Return the scaling policy."""
    policy: Object | None = (job["spec"].get("elasticPolicy") or {}).get("scalingPolicy")
    return policy


def be_autoscaled(job: Object, draw: random.Random) -> None:
    """Let the autoscaler choose the number of workers of some elastic PyTorchJobs; everything else stays as the seed has it."""
    policy = job["spec"].get("elasticPolicy")
    if job["kind"] != "PyTorchJob" or policy is None or "metrics" in policy or draw.random() > 0.25:
        return
    scaling: Object = {"policy": draw.choice(["throughput", "throughput", "capacity", "deadline"])}
    scaling |= {"cooldownSeconds": draw.choice([1, 1, 20, 60]), "holdSeconds": draw.choice([1, 1, 30, 3600])}
    if scaling["policy"] == "deadline":
        scaling |= {"finishBy": "2026-01-01T00:30:00Z", "totalSteps": draw.choice([100, 1000])}
    if draw.random() < 0.3:
        scaling["through"] = "hpa"
    policy["scalingPolicy"] = scaling
    parse(job)


def job_of(kind: Kind, types: dict[str, int], *, restart: str = "OnFailure", policy: Object | None = None, run_policy: Object) -> Object:
    spec: dict[str, Any] = {kind.replica_key: {type: _replica(kind, count, restart) for type, count in types.items()}}
    spec["runPolicy"] = run_policy
    if policy is not None:
        spec["elasticPolicy"] = policy
    return {"apiVersion": "kubeflow.org/v1", "kind": kind.name, "metadata": {"name": NAME, "namespace": "team"}, "spec": spec}


def replicas(job: Object) -> Object:
    """Return the replica specs of a raw job."""
    specs: Object = job["spec"][KINDS[job["kind"]].replica_key]
    return specs


def _replica(kind: Kind, count: int, restart: str) -> Object:
    container = {"name": kind.container, "image": "example/train:1", "command": ["torchrun", "train.py"]}
    return {"replicas": count, "restartPolicy": restart, "template": {"spec": {"containers": [container]}}}


def _elastic_policy(draw: random.Random, kind: Kind) -> Object:
    least = draw.randint(1, 3)
    policy: Object = {"minReplicas": least, "maxReplicas": draw.randint(least, 6), "scaleInGraceSeconds": draw.choice([0, 5, 30])}
    if draw.random() < 0.8:
        policy["maxRestarts"] = draw.choice([0, 3, 1000])
    if kind.name == "PyTorchJob" and draw.random() < 0.25:
        policy["rdzvBackend"] = "c10d"
    if draw.random() < 0.2:
        policy["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]
    return policy


def _run_policy(draw: random.Random) -> Object:
    policy: Object = {"cleanPodPolicy": draw.choice(["None", "Running", "All"])}
    if draw.random() < 0.3:
        policy["backoffLimit"] = draw.choice([0, 2, 5])
    if draw.random() < 0.2:
        policy["ttlSecondsAfterFinished"] = draw.choice([0, 20, 300])
    if draw.random() < 0.1:
        policy["activeDeadlineSeconds"] = draw.choice([30, 120, 600])
    if draw.random() < 0.1:
        policy["suspend"] = True
    if draw.random() < 0.15:
        policy["restartScope"] = draw.choice(["Pod", "Group"])
    return policy
