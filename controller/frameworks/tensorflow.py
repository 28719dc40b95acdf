"""Describe TFJobs: TF_CONFIG tells each replica the whole cluster, or only what it needs if workers are dynamic.

A chief or master decides the job's end. Without one, worker 0 decides it, or all workers if the user says so.
"""

import json
from collections.abc import Collection, Sequence

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name
from elastic.api.template import training_port
from elastic.api.words import SuccessPolicy
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.facts.snapshot import Pod, PodPhase
from elastic_training.controller.frameworks.environment import variable, with_environment
from elastic_training.controller.frameworks.protocol import Framework, Replica, total

PS = "PS"
LEADERS = ("Chief", "Master")


class TensorFlow(Framework):
    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        job, domain = view.job, view.snapshot.settings.cluster_domain
        if total(job) == 1:
            return pod
        config = _sparse(job, replica, domain) if job.options.enable_dynamic_worker else _full(job, replica, domain)
        return with_environment(pod, [variable("TF_CONFIG", json.dumps(config, separators=(",", ":")))], only=job.kind.container)

    def leader_type(self, job: Job) -> str | None:
        return next((type for type in LEADERS if type in job.replicas), None)

    def has_succeeded(self, job: Job, pods: Sequence[Pod], failed: Collection[str]) -> bool | None:
        """Return True, if failures are tolerated, once no worker could do more work and one has succeeded."""
        if self.leader_type(job) is not None or WORKER not in job.replicas:
            return None
        workers = [pod for pod in pods if pod.type == WORKER.lower() and not pod.is_deleting]
        done = [pod for pod in workers if pod.phase is PodPhase.SUCCEEDED]
        if job.options.success_policy is not SuccessPolicy.ALL_WORKERS:
            if any(pod.index == 0 for pod in done):
                return True
            if done and self.tolerates(job, WORKER):
                done += [pod for pod in workers if pod.uid in failed]
        return 0 < job.replicas[WORKER].replicas <= len(done)

    def called(self, job: Job) -> str:
        return f"{job.metadata.namespace}/{job.metadata.name}"

    def failed_subject(self, job: Job) -> str:
        return f"{self.called(job)} has"

    def tolerates(self, job: Job, type: str) -> bool:
        return job.options.enable_dynamic_worker and type == WORKER


def _address(job: Job, type: str, index: int, domain: str) -> str:
    host = f"{pod_name(job.kind, job.metadata.name, type, index)}.{job.metadata.namespace}.svc"
    return f"{host}{'.' + domain if domain else ''}:{training_port(job.replicas[type].template, job.kind)}"


def _addresses(job: Job, type: str, domain: str) -> list[str]:
    return [_address(job, type, index, domain) for index in range(job.replicas[type].replicas)]


def _task(replica: Replica) -> Object:
    return {"type": replica.type.lower(), "index": replica.index}


def _full(job: Job, replica: Replica, domain: str) -> Object:
    cluster = {type.lower(): _addresses(job, type, domain) for type in job.replicas}
    return {"cluster": dict(sorted(cluster.items())), "task": _task(replica), "environment": "cloud"}


def _sparse(job: Job, replica: Replica, domain: str) -> Object:
    """Return the sparse cluster: a worker knows itself and the parameter servers, a parameter server itself, the others nothing."""
    cluster: Object = {"worker": {}, "ps": []}
    if replica.type == WORKER:
        cluster["worker"][str(replica.index)] = _address(job, WORKER, replica.index, domain)
        cluster["ps"] = _addresses(job, PS, domain) if PS in job.replicas else []
    elif replica.type == PS:
        cluster["ps"] = [_address(job, PS, replica.index, domain)]
    return {"cluster": cluster, "task": _task(replica)}
