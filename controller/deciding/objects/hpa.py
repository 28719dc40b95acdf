"""Decides whether a job has a HorizontalPodAutoscaler: while it is active and the user gave metrics, or wants one to carry the autoscaler's
decision out (`scalingPolicy.through: hpa`), and not a moment longer.
A job in a queue of Kueue's has none: Kueue admits a number of workers, and suspends the whole job when somebody changes it.
"""

from collections.abc import Iterator

from controller.deciding import compat
from controller.deciding.actions import JobEvent, warning
from controller.deciding.objects.ownership import owned_metadata
from controller.deciding.settings import Settings
from controller.frameworks import FRAMEWORKS
from controller.watching.snapshot import Owned, Snapshot
from elastic.api.job import Job, Object
from elastic.api.kinds import API_VERSION
from elastic.api.scaling import DESIRED, PolicyName
from elastic.api.words import Through
from elastic.signals.table import QUEUE


def autoscaler(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    policy, settings = job.elastic, snapshot.settings
    has_one = compat.has_autoscalers_for_all_kinds(settings) or FRAMEWORKS[job.kind.name].has_upstream_autoscaler
    if policy is None or not has_metrics(job) or not has_one or _is_queued(job, settings):
        return
    least, most = job.bounds
    metrics = [*(policy.metrics or ()), *([_desired(job)] if _is_carried_out(job) else [])]
    is_ours = policy.metrics is None
    yield {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": owned_metadata(job, job.metadata.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": job.kind.name, "name": job.metadata.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": metrics,
            # Of several metrics the highest counts, and those of a user want the usual tolerance and windows.
            **({"behavior": _at_once(snapshot.find("HorizontalPodAutoscaler", job.metadata.name))} if is_ours else {}),
        },
    }


def has_metrics(job: Job) -> bool:
    return job.elastic is not None and (job.elastic.metrics is not None or _is_carried_out(job))


def _is_carried_out(job: Job) -> bool:
    policy = job.elastic.scaling_policy if job.elastic is not None else None
    return policy is not None and policy.through is Through.HPA and policy.policy is not PolicyName.HPA


def _desired(job: Job) -> Object:
    """The autoscaler's decision as a metric: each worker's share of it is to be 1."""
    selector = {"matchLabels": {"kind": job.kind.name, "job": job.metadata.name}}
    metric = {"name": DESIRED, "selector": selector}
    return {"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}}}


def _at_once(there: Owned | None) -> Object:
    """The decision has waited and weighed enough. An API server before 1.35 drops the tolerance; asked for it again, it would drop it with
    every reconcile, so it is not asked again. The autoscaler reads it back, and rounds what would be swallowed."""
    seen = (there.raw["spec"].get("behavior") or {}) if there is not None else {}
    found = {}
    for way, percent in (("scaleUp", 1000), ("scaleDown", 100)):
        policies = [{"type": "Percent", "value": percent, "periodSeconds": 15}]
        rules: Object = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": policies}
        was_dropped = way in seen and "tolerance" not in seen[way]
        found[way] = rules if was_dropped else rules | {"tolerance": "0"}
    return found


def left_out(job: Job, settings: Settings) -> Iterator[JobEvent]:
    """An Event for a job with metrics that gets no autoscaler: why."""
    if has_metrics(job) and _is_queued(job, settings):
        message = (
            f"{' and '.join(asking(job))} has no effect while the label {QUEUE} is set: Kueue suspends an admitted job whose number of "
            "workers changes, so no HorizontalPodAutoscaler is created; remove one of the two"
        )
        yield warning("AutoscalerLeftOut", message)


def asking(job: Job) -> Iterator[str]:
    """The fields that ask for an autoscaler."""
    if job.elastic is not None and job.elastic.metrics is not None:
        yield "elasticPolicy.metrics"
    if _is_carried_out(job):
        yield "elasticPolicy.scalingPolicy.through"


def _is_queued(job: Job, settings: Settings) -> bool:
    return bool(job.metadata.labels.get(QUEUE)) and compat.knows_kueue(settings)
