"""Describe XGBoostJobs, also for LightGBM: each replica gets the master's address, its rank, and the names of any workers."""

from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name
from elastic.api.template import training_port
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.frameworks.environment import Variable, variable, with_environment
from elastic_training.controller.frameworks.protocol import Framework, Replica, total

MASTER = "Master"


class XGBoost(Framework):
    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        return with_environment(pod, _environment(view.job, replica))

    def leader_type(self, job: Job) -> str | None:
        return MASTER


def _environment(job: Job, replica: Replica) -> Iterator[Variable]:
    masters, everybody = job.replicas[MASTER].replicas, total(job)
    yield variable("MASTER_PORT", training_port(job.replicas[MASTER].template, job.kind))
    yield variable("MASTER_ADDR", pod_name(job.kind, job.metadata.name, MASTER, 0))
    yield variable("WORLD_SIZE", everybody)
    yield variable("RANK", replica.index if replica.type == MASTER else replica.index + masters)
    yield variable("PYTHONUNBUFFERED", 1)
    if everybody > 1 and WORKER in job.replicas:
        yield variable("WORKER_PORT", training_port(job.replicas[WORKER].template, job.kind))
        yield variable("WORKER_ADDRS", ",".join(pod_name(job.kind, job.metadata.name, WORKER, i) for i in range(everybody - 1)))
