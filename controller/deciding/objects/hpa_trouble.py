"""Say on the job why its HorizontalPodAutoscaler has not scaled it for a while.

A metric may be missing, or a second autoscaler may aim at the same workers: Kubernetes then lets neither act. The job trains on with the
workers that it has.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from elastic.api.job import Job
from elastic_training.controller.deciding.actions import JobEvent, warning
from elastic_training.controller.deciding.objects.hpa import asking, has_metrics
from elastic_training.controller.facts.snapshot import Snapshot, time_of

PATIENCE = timedelta(seconds=120)
"""The metrics of new pods take a minute."""
TYPES = ("AbleToScale", "ScalingActive")
DISABLED = "ScalingDisabled"
"""By a number of 0 workers, which the user has set."""
LONGEST_MESSAGE = 300


def in_words(job: Job, snapshot: Snapshot) -> str:
    """Say what is wrong with the HorizontalPodAutoscaler; return "" if nothing is, or only for a short time."""
    trouble = _trouble(job, snapshot)
    if trouble is None or snapshot.now < trouble.told_at:
        return ""
    found = trouble.condition
    reason, fields = found.get("reason", ""), " and ".join(asking(job))
    remedy = (
        f"remove the other HorizontalPodAutoscaler or {fields}"
        if reason == "AmbiguousSelector"
        else f"mend {fields}, or see to it that the metric is served (kubectl -n {job.metadata.namespace} describe hpa {job.metadata.name})"
    )
    message = str(found.get("message", ""))[:LONGEST_MESSAGE].rstrip(".")
    return f"HorizontalPodAutoscaler {job.metadata.name} does not scale the job ({reason}): {message}; {remedy}"


def events(job: Job, snapshot: Snapshot) -> Iterator[JobEvent]:
    if words := in_words(job, snapshot):
        yield warning("AutoscalerInTrouble", words)


def look_again_at(job: Job, snapshot: Snapshot) -> datetime | None:
    trouble = _trouble(job, snapshot)
    return trouble.told_at if trouble is not None and snapshot.now < trouble.told_at else None


class _Trouble(NamedTuple):
    condition: Mapping[str, Any]
    told_at: datetime


def _trouble(job: Job, snapshot: Snapshot) -> _Trouble | None:
    """Return the first condition that is False."""
    there = snapshot.find("HorizontalPodAutoscaler", job.metadata.name)
    if there is None or not has_metrics(job):
        return None
    conditions = {found.get("type"): found for found in (there.raw.get("status") or {}).get("conditions") or ()}
    bad = (conditions[type] for type in TYPES if type in conditions and conditions[type].get("status") == "False")
    dated = ((found, time_of(found.get("lastTransitionTime"))) for found in bad if found.get("reason") != DISABLED)
    return next((_Trouble(found, since + PATIENCE) for found, since in dated if since is not None), None)
