"""Decides whether a job has a HorizontalPodAutoscaler: while it is active and the user gave metrics, and not a moment longer.
A job in a queue of Kueue's has none: Kueue admits a number of workers, and suspends the whole job when somebody changes it.
"""

from collections.abc import Iterator

from controller.deciding import compat
from controller.deciding.actions import JobEvent, warning
from controller.deciding.objects.ownership import owned_metadata
from controller.deciding.settings import Settings
from controller.frameworks import FRAMEWORKS
from elastic.api.job import Job, Object
from elastic.api.kinds import API_VERSION

QUEUE = "kueue.x-k8s.io/queue-name"


def autoscaler(job: Job, settings: Settings) -> Iterator[Object]:
    policy = job.elastic
    has_one = compat.has_autoscalers_for_all_kinds(settings) or FRAMEWORKS[job.kind.name].has_upstream_autoscaler
    if policy is None or policy.metrics is None or not has_one or _is_queued(job, settings):
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


def left_out(job: Job, settings: Settings) -> Iterator[JobEvent]:
    """An Event for a job with metrics that gets no autoscaler: why."""
    if job.elastic is not None and job.elastic.metrics is not None and _is_queued(job, settings):
        message = (
            f"elasticPolicy.metrics has no effect while the label {QUEUE} is set: Kueue suspends an admitted job whose number of workers "
            "changes, so no HorizontalPodAutoscaler is created; remove one of the two"
        )
        yield warning("AutoscalerLeftOut", message)


def _is_queued(job: Job, settings: Settings) -> bool:
    return bool(job.metadata.labels.get(QUEUE)) and compat.knows_kueue(settings)
