"""Decide what to say about an invalid job that was stored.

A job that never started has failed, with the reason. A job that runs is left alone, because a wrong edit is no cause to stop training.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from elastic.api.errors import Problem
from elastic.api.job import INT32, JobStatus
from elastic.api.kinds import Kind
from elastic.api.words import ConditionType, ManagedBy
from elastic_training.controller.deciding.actions import DeleteJob, Plan, warning
from elastic_training.controller.deciding.lifecycle.cleanup import due_at
from elastic_training.controller.deciding.lifecycle.conditions import is_over, with_condition

MOST_SHOWN = 10


def plan_for_invalid(kind: Kind, job: Mapping[str, Any], *, status: JobStatus, problems: Sequence[Problem], now: datetime) -> Plan:
    name = job["metadata"]["name"]
    if job["metadata"].get("deletionTimestamp") or _is_anothers(job):
        return Plan()
    if is_over(status):
        return _gone_in_time(job, status, now)
    shown = "; ".join(str(problem) for problem in problems[:MOST_SHOWN])
    more = f"; and {len(problems) - MOST_SHOWN} more" if len(problems) > MOST_SHOWN else ""
    message = f"{kind.title} {name} is not valid: {shown}{more}"
    news = (warning("InvalidSpec", message),)
    if status.start_time is not None:
        return Plan(news=news)
    created = f"{kind.title} {name} is created."
    status = with_condition(status, ConditionType.CREATED, reason=f"{kind.name}Created", message=created, now=now)
    status = with_condition(status, ConditionType.FAILED, reason="InvalidSpec", message=message, now=now)
    return Plan(status=replace(status, completion_time=now), news=news)


def _gone_in_time(job: Mapping[str, Any], status: JobStatus, now: datetime) -> Plan:
    """Return the plan that deletes a broken job when its time has passed: the readable part of its policy holds."""
    policy = _policy(job)
    ttl = policy.get("ttlSecondsAfterFinished")
    if not isinstance(ttl, int) or not 0 <= ttl <= INT32 or policy.get("suspend"):
        return Plan()
    due = due_at(status, ttl)
    return Plan((DeleteJob(),)) if due is not None and due <= now else Plan(look_again_at=due)


def _is_anothers(job: Mapping[str, Any]) -> bool:
    """Return whether the job names another manager, which then judges its fields."""
    manager = _policy(job).get("managedBy")
    return isinstance(manager, str) and manager not in ("", ManagedBy.TRAINING_OPERATOR.value)


def _policy(job: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, dict) else None
    return policy if isinstance(policy, dict) else {}
