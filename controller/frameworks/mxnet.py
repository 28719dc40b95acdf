"""MXNet, as the Training Operator had it up to 1.8: MX_CONFIG for all, and the DMLC variables of the parameter server for training."""

import json
from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name
from elastic.api.template import training_port
from elastic.api.words import JobMode
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.frameworks.environment import Variable, variable, with_environment
from elastic_training.controller.frameworks.protocol import Framework, Replica

SCHEDULER, SERVER, TUNER = "Scheduler", "Server", "Tuner"
TUNER_KEY = "tuner-server-key"
"""Annotation of a template that names the key under which the tuner's server knows these replicas."""


class MxNet(Framework):
    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        return with_environment(pod, _environment(view.job, replica))

    def needs_gang_restart(self, job: Job) -> bool:
        return job.options.job_mode is JobMode.TRAIN

    def leader_type(self, job: Job) -> str | None:
        """Return the scheduler, which ends when training does. A search has none: its tuner ends it, and its servers never end."""
        return next((type for type in (SCHEDULER, TUNER) if type in job.replicas), None)


def _environment(job: Job, replica: Replica) -> Iterator[Variable]:
    yield variable("MX_CONFIG", json.dumps(_config(job, replica), separators=(",", ":")))
    if job.options.job_mode is not JobMode.TRAIN:
        return
    scheduler = job.replicas.get(SCHEDULER)
    yield variable("DMLC_PS_ROOT_PORT", training_port(scheduler.template, job.kind) if scheduler else 0)
    yield variable("DMLC_PS_ROOT_URI", pod_name(job.kind, job.metadata.name, SCHEDULER, 0) if scheduler else "")
    yield variable("DMLC_NUM_SERVER", _count(job, SERVER))
    yield variable("DMLC_NUM_WORKER", _count(job, WORKER))
    yield variable("DMLC_ROLE", replica.type.lower())
    yield variable("DMLC_USE_KUBERNETES", 1)
    if replica.type == WORKER:
        yield variable("DMLC_WORKER_ID", replica.index)


def _count(job: Job, type: str) -> int:
    return job.replicas[type].replicas if type in job.replicas else 0


def _config(job: Job, replica: Replica) -> Object:
    cluster = {}
    labels = {}
    for type, spec in job.replicas.items():
        port = training_port(spec.template, job.kind)
        urls = (pod_name(job.kind, job.metadata.name, type, index) for index in range(spec.replicas))
        cluster[type.lower()] = [{"url": url, "port": port} for url in urls]
        labels[type.lower()] = ((spec.template.get("metadata") or {}).get("annotations") or {}).get(TUNER_KEY, "")
    return {
        "cluster": dict(sorted(cluster.items())),
        "labels": dict(sorted(labels.items())),
        "task": {"type": replica.type.lower(), "index": replica.index},
    }
