"""Decides whether a job has a HorizontalPodAutoscaler: while it is active and the user gave metrics, and not a moment longer."""

from collections.abc import Iterator

from controller.ownership import owned_metadata
from controller.settings import Settings
from elastic.api.job import Job, Object
from elastic.api.kinds import API_VERSION

UPSTREAM = "PyTorchJob"
"""The one kind for which the Training Operator makes an autoscaler."""


def autoscaler(job: Job, settings: Settings) -> Iterator[Object]:
    policy = job.elastic
    if policy is None or policy.metrics is None or (settings.strict and job.kind.name != UPSTREAM):
        return
    least, most = job.bounds
    yield {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": owned_metadata(job, job.metadata.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": job.kind.name, "name": job.metadata.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": list(policy.metrics),
        },
    }
