"""The metrics of a job that HorizontalPodAutoscalers may ask for, by name, as Kubernetes writes amounts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from autoscale.figures import JobFigures
from elastic.api.scaling import DESIRED

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
OF_WORKERS: Mapping[str, str] = MappingProxyType({"throughput": "throughput_per_worker"})
"""What a job's pods have, and which metric of the job it is. All others are of the job as a whole: a part of one means nothing."""


def value(name: str, job: JobFigures) -> str | None:
    """None: not known (yet)."""
    amount = _OF[name](job)
    if amount is None or not math.isfinite(amount) or abs(amount) > MOST:
        return None
    milli = round(amount * 1000)
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
