"""Decide whether a job has a HorizontalPodAutoscaler.

An active job has one if the user gave metrics, or wants it to carry out the autoscaler's decision (`scalingPolicy.through: hpa`). A job in
a Kueue queue has none: Kueue admits a number of workers, and suspends the whole job when somebody changes that number.
"""

from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import API_VERSION
from elastic.api.scaling import DESIRED, PolicyName, ScalingPolicy
from elastic.api.words import Through
from elastic.signals.table import QUEUE
from elastic_training.controller.deciding.actions import JobEvent, warning
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.facts.snapshot import Owned, Snapshot

LONGEST_PERIOD_S = 1800
"""Kubernetes allows no longer period of a policy."""
SHRINK_WINDOW_S = 300
"""Kubernetes' own: the highest number that was wanted of late counts."""


def autoscaler(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    policy = job.elastic
    if policy is None or not has_metrics(job) or _is_queued(job):
        return
    least, most = job.bounds
    metrics = [*(policy.metrics or ()), *([_desired(job)] if _is_carried_out(job) else [])]
    behavior = _behavior(job, snapshot)
    yield {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": owned_metadata(job, job.metadata.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": job.kind.name, "name": job.metadata.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": metrics,
            **({"behavior": behavior} if behavior else {}),
        },
    }


def has_metrics(job: Job) -> bool:
    return job.elastic is not None and (job.elastic.metrics is not None or _is_carried_out(job))


def _is_carried_out(job: Job) -> bool:
    policy = job.elastic.scaling_policy if job.elastic is not None else None
    return policy is not None and policy.through is Through.HPA and policy.policy is not PolicyName.HPA


def _desired(job: Job) -> Object:
    """Return the autoscaler's decision as a metric. Each worker's share of it is to be 1."""
    selector = {"matchLabels": {"kind": job.kind.name, "job": job.metadata.name}}
    metric = {"name": DESIRED, "selector": selector}
    return {"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}}}


def _behavior(job: Job, snapshot: Snapshot) -> Object:
    """Return how fast the autoscaler may scale; empty: the object's behavior stays as it is.

    The highest of several metrics counts, and a user's metrics want the usual tolerance. The user may change a behavior for own metrics.
    """
    assert job.elastic is not None
    there = snapshot.find("HorizontalPodAutoscaler", job.metadata.name)
    behavior = (there.raw["spec"].get("behavior") or {}) if there is not None else {}
    ours = behavior if there is not None and _is_for_a_decision(there) else {}
    if job.elastic.metrics is None:
        return _at_once(ours)
    if behavior and not ours:
        return {}
    return _paced(job, ours)


def _is_for_a_decision(there: Owned) -> bool:
    """Return whether it was made for our own decisions, without a user's metrics."""
    return all((metric.get("external") or {}).get("metric", {}).get("name") == DESIRED for metric in there.raw["spec"].get("metrics") or ())


def _at_once(seen: Object) -> Object:
    """Return a behavior without any wait, because the decision has waited and weighed enough.

    An API server before 1.35 drops the tolerance; asked for it again, it would drop it with every reconcile, so it is not asked again. The
    autoscaler reads it back, and rounds what would be swallowed.
    """
    found = {}
    for way, percent in (("scaleUp", 1000), ("scaleDown", 100)):
        policies = [{"type": "Percent", "value": percent, "periodSeconds": 15}]
        rules: Object = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": policies}
        was_dropped = way in seen and "tolerance" not in seen[way]
        found[way] = rules if was_dropped else rules | {"tolerance": "0"}
    return found


def _paced(job: Job, seen: Object) -> Object:
    """Return the rules that bound how fast the size changes, because each change costs all workers a pause.

    Within the job's cooldown at most one worker or a tenth may go, and at most four, or as many as there are, may come. A metric that only
    swings, as it does while workers start, changes nothing.
    """
    policy = (job.elastic.scaling_policy if job.elastic is not None else None) or ScalingPolicy()
    period_s = min(max(1, policy.cooldown_seconds), LONGEST_PERIOD_S)
    found = {}
    for way, window_s, workers, percent in (("scaleUp", period_s, 4, 100), ("scaleDown", max(SHRINK_WINDOW_S, period_s), 1, 10)):
        steps = (("Pods", workers), ("Percent", percent))
        policies = [{"type": type, "value": value, "periodSeconds": period_s} for type, value in steps]
        rules: Object = {"stabilizationWindowSeconds": window_s, "selectPolicy": "Max", "policies": policies}
        found[way] = rules | ({"tolerance": None} if "tolerance" in seen.get(way, ()) else {})
    return found


def left_out(job: Job) -> Iterator[JobEvent]:
    """Yield an Event that says why a job with metrics gets no autoscaler."""
    if has_metrics(job) and _is_queued(job):
        message = (
            f"{' and '.join(asking(job))} has no effect while the label {QUEUE} is set: Kueue suspends an admitted job whose number of "
            "workers changes, so no HorizontalPodAutoscaler is created; remove one of the two"
        )
        yield warning("AutoscalerLeftOut", message)


def asking(job: Job) -> Iterator[str]:
    """Yield the fields that ask for an autoscaler."""
    if job.elastic is not None and job.elastic.metrics is not None:
        yield "elasticPolicy.metrics"
    if _is_carried_out(job):
        yield "elasticPolicy.scalingPolicy.through"


def _is_queued(job: Job) -> bool:
    return bool(job.metadata.labels.get(QUEUE))
