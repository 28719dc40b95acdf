"""Write the counts of a job's pods as upstream's clients read them."""

from collections.abc import Mapping

from elastic.api import names
from elastic.api.job import Job, ReplicaStatus
from elastic.api.kinds import WORKER
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.frameworks import FRAMEWORKS


def replica_statuses(job: Job, counts: Mapping[str, Tally]) -> dict[str, ReplicaStatus]:
    return {
        type: ReplicaStatus(active=count.active, succeeded=count.succeeded, failed=count.failed, selector=_selector(job, type))
        for type, count in counts.items()
    }


def _selector(job: Job, type: str) -> str:
    # A HorizontalPodAutoscaler finds pods by the selector. Upstream writes it for three kinds only; we write it for elastic workers too.
    if FRAMEWORKS[job.kind.name].has_selector or (job.elastic is not None and type == WORKER):
        return names.selector(job.kind, job.metadata.name, type)
    return ""
