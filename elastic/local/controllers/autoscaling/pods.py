"""Sort a target's pods for a metric: ready pods with a value, unready ones, pods without a value, and pods that are leaving.

Also sum up their requests. Pure; it knows pods as the API server shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from elastic.local.controllers.autoscaling.amounts import thousandths

Object = dict[str, Any]
CPU_INITIALIZATION_S, INITIAL_READINESS_S = 300.0, 30.0
"""Limits of kube-controller-manager. The CPU of a pod younger than the first counts only if it was measured after the pod became ready. A
pod that became unready sooner than the second after its start was never ready."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a pod, in thousandths."""

    amount: int
    at: float
    window_s: float


@dataclass(frozen=True, slots=True)
class Groups:
    ready: int
    unready: frozenset[str]
    missing: frozenset[str]
    ignored: frozenset[str]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something cannot be computed."""

    words: str


def groups(pods: Iterable[Object], values: Mapping[str, Value], *, is_cpu: bool, now: float) -> Groups:
    ready, unready, missing, ignored = 0, set(), set(), set()
    for pod in pods:
        name, phase = pod["metadata"]["name"], (pod.get("status") or {}).get("phase")
        if "deletionTimestamp" in pod["metadata"] or phase == "Failed":
            ignored.add(name)
        elif phase == "Pending":
            unready.add(name)
        elif name not in values:
            missing.add(name)
        elif is_cpu and _is_unready(pod["status"], values[name], now):
            unready.add(name)
        else:
            ready += 1
    return Groups(ready, frozenset(unready), frozenset(missing), frozenset(ignored))


def _is_unready(status: Object, value: Value, now: float) -> bool:
    condition = _ready(status)
    if condition is None or not status.get("startTime"):
        return True
    started, changed = seconds(status["startTime"]), seconds(condition.get("lastTransitionTime"))
    is_not_ready = condition["status"] == "False"
    if started + CPU_INITIALIZATION_S > now:
        return is_not_ready or value.at < changed + value.window_s
    return is_not_ready and started + INITIAL_READINESS_S > changed


def _ready(status: Object) -> Object | None:
    return next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)


def seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else -float(62135596800)


def ready_count(pods: Iterable[Object]) -> int:
    statuses = [pod.get("status") or {} for pod in pods]
    return sum(s.get("phase") == "Running" and (_ready(s) or {}).get("status") == "True" for s in statuses)


def requests(pods: Iterable[Object], *, resource: str, container: str) -> dict[str, int] | Problem:
    """Return the request of each pod, or of its named container, in thousandths."""
    found = {}
    for pod in pods:
        request = _request(pod, resource, container)
        if isinstance(request, Problem):
            return request
        found[pod["metadata"]["name"]] = request
    return found


def _request(pod: Object, resource: str, container: str) -> int | Problem:
    spec, name = pod["spec"], pod["metadata"]["name"]
    of_pod = (spec.get("resources") or {}).get("requests")
    if of_pod and not container:
        return thousandths(of_pod[resource]) if resource in of_pod else Problem(f"missing pod-level request for {resource} in Pod {name}")
    sidecars = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    total = 0
    for one in (*spec["containers"], *sidecars):
        if container in ("", one["name"]):
            written = ((one.get("resources") or {}).get("requests") or {}).get(resource)
            if written is None:
                return Problem(f"missing request for {resource} in container {one['name']} of Pod {name}")
            total += thousandths(written)
        if container == one["name"]:
            return total
    return Problem(f"container {container} not found in Pod {name}") if container else total
