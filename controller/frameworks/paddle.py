"""Paddle: collective training, where worker 0 hosts the key-value store, or parameter servers, where master 0 does.

The host gets its own address from the downward API, because Paddle compares it with what its host name resolves to.
"""

from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name
from elastic.api.template import training_port
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.frameworks.environment import Variable, variable, with_environment
from elastic_training.controller.frameworks.protocol import Framework, Replica, total

MASTER = "Master"


class Paddle(Framework):
    has_selector = True

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        return with_environment(pod, _environment(view.job, replica))

    def leader_type(self, job: Job) -> str | None:
        return MASTER if MASTER in job.replicas else None


def _environment(job: Job, replica: Replica) -> Iterator[Variable]:
    host = Replica(MASTER if MASTER in job.replicas else WORKER, 0)
    port = training_port(job.replicas[host.type].template, job.kind)
    yield variable("PYTHONUNBUFFERED", 1)
    yield variable("PADDLE_JOB_ID", job.metadata.name)
    yield variable("PADDLE_NNODES", total(job))
    if replica == host:
        yield {"name": "POD_IP_DUMMY", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        yield variable("PADDLE_MASTER", f"$(POD_IP_DUMMY):{port}")
    else:
        yield variable("PADDLE_MASTER", f"{pod_name(job.kind, job.metadata.name, host.type, 0)}:{port}")
    if MASTER in job.replicas:
        yield variable("PADDLE_SERVER_NUM" if replica.type == MASTER else "PADDLE_TRAINER_NUM", 1)
