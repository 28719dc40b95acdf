"""Calculate how many replicas a metric asks for, as kube-controller-manager's replica calculator does. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.local.controllers.autoscaling.amounts import MOST, divided
from elastic.local.controllers.autoscaling.pods import Groups, Problem, Value, groups, ready_count, requests

Object = dict[str, Any]
MOST_REPLICAS = 2**31 - 1
NO_PODS = Problem("no pods returned by selector while calculating replica count")
NO_VALUES = Problem("did not receive metrics for targeted pods (pods might be unready)")


@dataclass(frozen=True, slots=True)
class Tolerances:
    down: float = 0.1
    up: float = 0.1

    def holds(self, ratio: float) -> bool:
        """Return whether the deviation is too small to act on."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True)
class Target:
    """The present state of the scaled object."""

    replicas: int
    """Number of replicas in its spec."""
    observed: int
    """Number of replicas in its status."""
    pods: Sequence[Object]
    tolerances: Tolerances
    now: float


@dataclass(frozen=True, slots=True)
class Count:
    replicas: int
    amount: int
    """Measured amount, in thousandths."""
    utilization: int = 0
    """Measured amount in percent of the requests."""


@dataclass(frozen=True, slots=True)
class _Use:
    ratio: float
    amount: int
    utilization: int = 0


_Measure = Callable[[Mapping[str, int]], "_Use | Problem"]


def by_utilization(target: Target, values: Mapping[str, Value], *, percent: int, resource: str, container: str) -> Count | Problem:
    """Calculate for a wanted percentage of the pods' requests.

    If the other pods would let the target shrink, a pod without a value counts as using its whole request. If they would let it grow, it
    counts as using nothing.
    """
    if not target.pods:
        return NO_PODS
    wanted = groups(target.pods, values, is_cpu=resource == "cpu", now=target.now)
    counted = _counted(values, wanted)
    if not counted:
        return NO_VALUES
    asked = requests(target.pods, resource=resource, container=container)
    if isinstance(asked, Problem):
        return asked

    def measure(amounts: Mapping[str, int]) -> _Use | Problem:
        known = [name for name in amounts if name in asked]
        total, requested = sum(amounts[name] for name in known), sum(asked[name] for name in known)
        if not requested:
            return Problem("no metrics returned matched known pods")
        utilization = divided(total * 100, requested)
        return _Use(utilization / percent, divided(total, len(known)), utilization)

    return _replicas(target, counted, wanted, measure, lambda name: divided(asked[name] * max(100, percent), 100))


def by_average(target: Target, values: Mapping[str, Value], *, average: int, resource: str = "") -> Count | Problem:
    """Calculate for a wanted average of the pods, in thousandths."""
    if not target.pods:
        return NO_PODS
    wanted = groups(target.pods, values, is_cpu=resource == "cpu", now=target.now)
    counted = _counted(values, wanted)
    if not counted:
        return NO_VALUES

    def measure(amounts: Mapping[str, int]) -> _Use:
        mean = divided(sum(amounts.values()), len(amounts))
        return _Use(mean / average, mean)

    return _replicas(target, counted, wanted, measure, lambda name: average)


def _counted(values: Mapping[str, Value], found: Groups) -> dict[str, int]:
    return {name: value.amount for name, value in values.items() if name not in found.ignored and name not in found.unready}


def _replicas(target: Target, amounts: dict[str, int], found: Groups, measure: _Measure, full: Callable[[str], int]) -> Count | Problem:
    use = measure(amounts)
    if isinstance(use, Problem):
        return use
    stay = Count(target.replicas, use.amount, use.utilization)
    grows_beside_unready = bool(found.unready) and use.ratio > 1.0
    if not grows_beside_unready and not found.missing:
        ready = Count(_up(use.ratio * found.ready), use.amount, use.utilization)
        return stay if target.tolerances.holds(use.ratio) else ready
    if use.ratio != 1.0:
        amounts = amounts | {name: full(name) if use.ratio < 1.0 else 0 for name in found.missing}
    if grows_beside_unready:
        amounts = amounts | dict.fromkeys(found.unready, 0)
    again = measure(amounts)
    if isinstance(again, Problem):
        return again
    turned = (use.ratio < 1.0 < again.ratio) or (again.ratio < 1.0 < use.ratio)
    if turned or target.tolerances.holds(again.ratio):
        return stay
    replicas = _up(again.ratio * len(amounts))
    against = (again.ratio < 1.0 and replicas > target.replicas) or (again.ratio > 1.0 and replicas < target.replicas)
    return stay if against else Count(replicas, use.amount, use.utilization)


def by_value(target: Target, amount: int, *, value: int) -> Count | Problem:
    """Calculate for a wanted value of an object that is not a pod, as if it were in proportion to the ready pods."""
    ratio = amount / value
    if target.replicas == 0:
        return Count(_up(ratio), amount)
    if target.tolerances.holds(ratio):
        return Count(target.replicas, amount)
    if not target.pods:
        return Problem(f"unable to calculate ready pods: {NO_PODS.words}")
    return Count(_up(ratio * ready_count(target.pods)), amount)


def by_value_per_pod(target: Target, amount: int, *, average: int) -> Count:
    """Calculate for a wanted share of each replica in a value."""
    replicas = target.observed
    ratio = amount / (average * replicas) if replicas else math.inf if amount else math.nan
    if not target.tolerances.holds(ratio):
        replicas = _up(amount / average)
    each = math.ceil(amount / target.observed) if target.observed else MOST if amount else 0
    return Count(replicas, each if amount < MOST else MOST)


def total(amounts: Sequence[int]) -> int:
    return min(sum(amounts), MOST)


def _up(replicas: float) -> int:
    return MOST_REPLICAS if replicas > MOST_REPLICAS else math.ceil(replicas)
