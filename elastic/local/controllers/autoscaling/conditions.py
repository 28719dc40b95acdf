"""The conditions of a HorizontalPodAutoscaler: set one by one, dated when their status changes. Pure."""

from __future__ import annotations

from typing import Any

from elastic.local.agent.status import timestamp

Object = dict[str, Any]
ABLE, ACTIVE, LIMITED = "AbleToScale", "ScalingActive", "ScalingLimited"


def with_condition(conditions: list[Object], kind: str, holds: bool, reason: str, message: str, *, now: float) -> list[Object]:
    status = "True" if holds else "False"
    old = next((c for c in conditions if c["type"] == kind), None)
    changed = old is None or old["status"] != status
    since = timestamp(now) if changed or old is None else old.get("lastTransitionTime", timestamp(now))
    new = {"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}
    return [*conditions, new] if old is None else [new if c is old else c for c in conditions]
