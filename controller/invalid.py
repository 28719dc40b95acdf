"""Decides what to say about a job that got in although it makes no sense. One that never started has failed, with the reason;
one that runs is left alone, because an edit that went wrong is no cause to stop training.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from controller.actions import Plan, warning
from controller.conditions import is_over, with_condition
from elastic.api.errors import Problem
from elastic.api.job import JobStatus
from elastic.api.kinds import Kind
from elastic.api.words import ConditionType, ManagedBy

MOST_SHOWN = 10


def plan_for_invalid(kind: Kind, job: Mapping[str, Any], *, status: JobStatus, problems: Sequence[Problem], now: datetime) -> Plan:
    name = job["metadata"]["name"]
    if is_over(status) or job["metadata"].get("deletionTimestamp") or _is_anothers(job):
        return Plan()
    shown = "; ".join(str(problem) for problem in problems[:MOST_SHOWN])
    more = f"; and {len(problems) - MOST_SHOWN} more" if len(problems) > MOST_SHOWN else ""
    message = f"{kind.name} {name} is not valid: {shown}{more}"
    news = (warning("InvalidSpec", message),)
    if status.start_time is not None:
        return Plan(news=news)
    created = f"{kind.name} {name} is created."
    status = with_condition(status, ConditionType.CREATED, reason=f"{kind.name}Created", message=created, now=now)
    status = with_condition(status, ConditionType.FAILED, reason="InvalidSpec", message=message, now=now)
    return Plan(status=replace(status, completion_time=now), news=news)


def _is_anothers(job: Mapping[str, Any]) -> bool:
    """Does the job name somebody else who acts on it? Then what it may say is his to judge."""
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, dict) else None
    manager = policy.get("managedBy") if isinstance(policy, dict) else None
    return isinstance(manager, str) and manager not in ("", ManagedBy.TRAINING_OPERATOR.value)
