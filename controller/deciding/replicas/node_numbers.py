"""Number the nodes of a TrainJob, for clients that find a node by the label of a Job's index."""

from collections.abc import Iterable, Iterator
from itertools import count

from elastic.api.job import Object
from elastic.api.names import NODE_NUMBER, REPLICA_INDEX
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.facts.snapshot import PodPhase


def numbered(view: JobView, made: Iterable[Object]) -> Iterator[Object]:
    """Yield the new pods, each with the lowest number that no live node has.

    If an index is a rank, the number is the index.
    """
    pods = view.snapshot.pods
    taken = {pod.number for pod in pods if not pod.is_deleting and pod.phase is not PodPhase.FAILED}
    free = (number for number in count() if number not in taken)
    for pod in made:
        if view.job.kind.role:
            labels = pod["metadata"]["labels"]
            labels[NODE_NUMBER] = str(next(free)) if view.has_interchangeable_workers else labels.get(REPLICA_INDEX, "0")
        yield pod
