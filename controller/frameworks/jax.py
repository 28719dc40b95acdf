"""JAX: worker 0 coordinates; every process learns its number and how many there are."""

from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import pod_name
from elastic.api.template import training_port
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.frameworks.environment import Variable, variable, with_environment
from elastic_training.controller.frameworks.protocol import Framework, Replica, total


class Jax(Framework):
    has_selector = True

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        return with_environment(pod, _environment(view.job, replica))


def _environment(job: Job, replica: Replica) -> Iterator[Variable]:
    yield variable("PYTHONUNBUFFERED", 1)
    yield variable("COORDINATOR_PORT", training_port(job.replicas[WORKER].template, job.kind))
    yield variable("COORDINATOR_ADDRESS", pod_name(job.kind, job.metadata.name, WORKER, 0))
    yield variable("NUM_PROCESSES", total(job))
    yield variable("PROCESS_ID", replica.index)
