"""Compute the metrics of a job for HorizontalPodAutoscalers, by name, and write them as Kubernetes quantities. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from elastic.api.scaling import DESIRED
from elastic_training.autoscale.figures import JobFigures

MOST = 2**53
_OF: Mapping[str, Callable[[JobFigures], float | None]] = MappingProxyType(
    {
        DESIRED: lambda job: job.wanted,
        "training_workers": lambda job: job.working,
        "throughput": lambda job: job.throughput,
        "throughput_per_worker": lambda job: job.throughput / job.working if job.throughput is not None and job.working else None,
        "scaling_efficiency": lambda job: job.efficiency,
        "marginal_efficiency": lambda job: job.marginal_efficiency,
        "goodput": lambda job: job.goodput,
        "rescale_seconds": lambda job: job.rescale_s,
        "seconds_to_target": lambda job: job.left_s,
    }
)
NAMES = tuple(_OF)
MEASURED = frozenset({"throughput", "throughput_per_worker", "scaling_efficiency", "marginal_efficiency", "seconds_to_target"})
"""Metrics that are computed from the last measured throughput. All other metrics describe the present."""
OF_WORKERS: Mapping[str, str] = MappingProxyType({"throughput": "throughput_per_worker"})
"""Metrics of pods, each with the metric of the job that gives its value. Other metrics describe a whole job, so pods do not have them."""


@dataclass(frozen=True, slots=True)
class Value:
    text: str | None
    """Value as text; None if there is no value."""
    words: str = ""
    """Reason why there is no value, or why the value differs from the decision."""
    measured_at: float | None = None
    """Time of the measurement in seconds since 1970; None if the value describes the present."""


def value(name: str, job: JobFigures) -> Value:
    if name not in MEASURED:
        return _value(_OF[name](job), None)
    if job.is_silent:
        at = f" (last measured at {as_time(job.measured_at)})" if job.measured_at else ""
        return Value(None, f"is not known{at}: the job reports no progress any more")
    return _value(_OF[name](job), job.measured_at or None)


def _value(amount: float | None, measured_at: float | None) -> Value:
    if amount is None or not math.isfinite(amount) or abs(amount) > MOST:
        return Value(None, "is not known yet")
    milli = round(amount * 1000)
    return Value(str(milli // 1000) if milli % 1000 == 0 else f"{milli}m", measured_at=measured_at)


def as_time(at: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
