"""How many pods a disruption budget can spare right now: the status of a PodDisruptionBudget, as a pure function of the pods it selects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil
from typing import Any

Object = dict[str, Any]
FORGIVEN_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """A pod that a budget selects."""

    name: str
    healthy: bool
    leaving: bool


def guarded(pod: Object) -> Guarded:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return Guarded(pod["metadata"]["name"], ready, "deletionTimestamp" in pod["metadata"])


def finished(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def counts_replicas(budget: Object) -> bool:
    """Return whether the budget counts by the wanted replicas. A plain minAvailable counts by the existing pods."""
    spec = budget["spec"]
    return "maxUnavailable" in spec or isinstance(spec.get("minAvailable"), str)


def budget_status(budget: Object, pods: Iterable[Guarded], *, replicas: int | None, now: float) -> Object:
    """Return the budget's status. `replicas` is what the pods' controllers want, if the budget counts that; None counts existing pods."""
    pods = list(pods)
    expected = len(pods) if replicas is None else replicas
    desired = _desired(budget["spec"], expected)
    disrupted = _still_disrupted((budget.get("status") or {}).get("disruptedPods") or {}, pods, now=now)
    healthy = sum(1 for pod in pods if pod.healthy and not pod.leaving and pod.name not in disrupted)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    return {
        "observedGeneration": budget["metadata"].get("generation", 1),
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptedPods": disrupted or None,
        "conditions": [_condition(budget, allowed, now=now)],
    }


def _desired(spec: Object, expected: int) -> int:
    if "maxUnavailable" in spec:
        return max(0, expected - _share(spec["maxUnavailable"], expected))
    return _share(spec.get("minAvailable", 1), expected)


def _share(written: int | str, of: int) -> int:
    if isinstance(written, str) and written.endswith("%"):
        return ceil(Fraction(written.removesuffix("%")) * of / 100)
    return int(written)


def _still_disrupted(noted: Mapping[str, str], pods: list[Guarded], *, now: float) -> dict[str, str]:
    """Return evictions that were granted and not seen yet. An eviction that does not come is dropped after FORGIVEN_AFTER_S."""
    awaited = {pod.name for pod in pods if not pod.leaving}
    return {name: at for name, at in noted.items() if name in awaited and now - _seconds(at) < FORGIVEN_AFTER_S}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _condition(budget: Object, allowed: int, *, now: float) -> Object:
    state = "True" if allowed > 0 else "False"
    before: Object = next(iter((budget.get("status") or {}).get("conditions") or ()), {})
    since = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before.get("status") == state:
        since = before.get("lastTransitionTime", since)
    return {
        "type": "DisruptionAllowed",
        "status": state,
        "reason": "SufficientPods" if allowed > 0 else "InsufficientPods",
        "message": "",
        "lastTransitionTime": since,
        "observedGeneration": budget["metadata"].get("generation", 1),
    }
