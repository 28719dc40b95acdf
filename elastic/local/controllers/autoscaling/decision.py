"""Decide what an autoscaler does now.

From its object, the target's scale and pods, and the answers of the metrics APIs, follow the target's new size and the autoscaler's status
and Events. Pure; tests/autoscaling compares it with kube-controller-manager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.kube import quantity
from elastic.local.agent.status import timestamp
from elastic.local.apiserver.selectors import Predicate
from elastic.local.controllers.autoscaling import limits
from elastic.local.controllers.autoscaling.conditions import ABLE, ACTIVE, LIMITED, with_condition
from elastic.local.controllers.autoscaling.limits import History
from elastic.local.controllers.autoscaling.replicas import Target, Tolerances
from elastic.local.controllers.autoscaling.sources import Answer, Failure, Proposal, proposal

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """The target's scale subresource."""

    replicas: int
    observed: int
    selector: str


@dataclass(frozen=True, slots=True)
class Note:
    """An Event about the autoscaler."""

    reason: str
    message: str
    is_warning: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations for a decision, besides the autoscaler itself."""

    scale: Scale
    pods: Sequence[Object] = ()
    """Pods that the scale's selector chooses."""
    answers: Sequence[Answer] = ()
    """Answers for the autoscaler's metrics, in their order."""
    selector_problem: str = ""
    """Why the selector cannot be read, or empty."""
    rivals: Sequence[str] = ()
    """Other autoscalers that choose some of the same pods."""


@dataclass(frozen=True, slots=True)
class Decision:
    status: Object
    history: History
    replicas: int | None = None
    """The target's new size; None for no change."""
    reason: str = ""
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    conditions: list[Object]
    replicas: int | None = None
    """Number of replicas, or None if the metrics do not give one."""
    metric: str = ""
    statuses: list[Object] | None = None
    notes: tuple[Note, ...] = field(default=())


def needs_metrics(hpa: Object, scale: Scale) -> bool:
    spec = hpa["spec"]
    return scale.replicas != 0 and spec.get("minReplicas", 1) <= scale.replicas <= spec["maxReplicas"]


def without_scale(hpa: Object, words: str, history: History, *, now: float) -> Decision:
    """Return the decision if the target's scale cannot be read."""
    message = f"the HPA controller was unable to get the target's current scale: {words}"
    conditions = with_condition(_conditions(hpa), ABLE, False, "FailedGetScale", message, now=now)
    status = {**(hpa.get("status") or {}), "conditions": conditions}
    return Decision(status, history, notes=(Note("FailedGetScale", words),))


def decide(hpa: Object, seen: Seen, history: History, *, now: float) -> Decision:
    spec, current = hpa["spec"], seen.scale.replicas
    message = "the HPA controller was able to get the target's current scale"
    conditions = with_condition(_conditions(hpa), ABLE, True, "SucceededGetScale", message, now=now)
    history = limits.begun(history, current, now=now)
    if current == 0:
        why = "scaling is disabled since the replica count of the target is zero"
        conditions = with_condition(conditions, ACTIVE, False, "ScalingDisabled", why, now=now)
        return _settled(hpa, _Wanted(conditions, 0), current, history, now=now)
    if current > spec["maxReplicas"]:
        why = "Current number of replicas above Spec.MaxReplicas"
        return _settled(hpa, _Wanted(conditions, spec["maxReplicas"]), current, history, reason=why, now=now)
    if current < spec.get("minReplicas", 1):
        why = "Current number of replicas below Spec.MinReplicas"
        return _settled(hpa, _Wanted(conditions, spec.get("minReplicas", 1)), current, history, reason=why, now=now)
    wanted = _by_metrics(hpa, seen, conditions, now=now)
    if wanted.replicas is None:
        status = _status(hpa, wanted, current, (hpa.get("status") or {}).get("desiredReplicas", 0))
        return Decision(status, history, notes=wanted.notes)
    return _within_limits(hpa, wanted, wanted.replicas, current, history, now=now)


def _within_limits(hpa: Object, wanted: _Wanted, replicas: int, current: int, history: History, *, now: float) -> Decision:
    allowed = limits.limited(hpa["spec"], current, replicas, history, now=now)
    conditions = with_condition(wanted.conditions, ABLE, True, *allowed.able, now=now)
    conditions = with_condition(conditions, LIMITED, allowed.is_limited, *allowed.limited, now=now)
    reason = f"{wanted.metric} above target" if replicas > current else "All metrics below target" if replicas < current else ""
    settled = replace(wanted, conditions=conditions, replicas=allowed.replicas)
    return _settled(hpa, settled, current, allowed.history, reason=reason, now=now)


def _settled(hpa: Object, wanted: _Wanted, current: int, history: History, *, reason: str = "", now: float) -> Decision:
    if wanted.replicas == current or wanted.replicas is None:
        return Decision(_status(hpa, wanted, current, current), history, notes=wanted.notes)
    message = f"the HPA controller was able to update the target scale to {wanted.replicas}"
    done = replace(wanted, conditions=with_condition(wanted.conditions, ABLE, True, "SucceededRescale", message, now=now))
    status = _status(hpa, done, current, wanted.replicas) | {"lastScaleTime": timestamp(now)}
    note = Note("SuccessfulRescale", f"New size: {wanted.replicas}; reason: {reason}", is_warning=False)
    after = limits.scaled(history, hpa["spec"].get("behavior"), current, wanted.replicas, now=now)
    return Decision(status, after, wanted.replicas, reason, (*wanted.notes, note))


def refused(hpa: Object, decision: Decision, current: int, words: str, history: History, *, now: float) -> Decision:
    """Return the decision if the target refused its new size. The history then has no change."""
    message = f"the HPA controller was unable to update the target scale: {words}"
    conditions = with_condition(decision.status["conditions"], ABLE, False, "FailedUpdateScale", message, now=now)
    before = hpa.get("status") or {}
    status = {k: v for k, v in decision.status.items() if k != "lastScaleTime"} | {"conditions": conditions}
    status |= {"currentReplicas": current, "desiredReplicas": before.get("desiredReplicas", 0)}
    status |= {"lastScaleTime": before["lastScaleTime"]} if "lastScaleTime" in before else {}
    note = Note("FailedRescale", f"New size: {decision.replicas}; reason: {decision.reason}; error: {words}")
    kept = replace(decision.history, added=history.added, taken=history.taken)
    return Decision(status, kept, notes=(*decision.notes[:-1], note))


def _by_metrics(hpa: Object, seen: Seen, conditions: list[Object], *, now: float) -> _Wanted:
    invalid = _invalid_selector(seen)
    if invalid is not None:
        reason, message, note = invalid
        conditions = with_condition(conditions, ACTIVE, False, reason, message, now=now)
        return _Wanted(conditions, notes=(note, Note("FailedComputeMetricsReplicas", note.message)))
    metrics = hpa["spec"].get("metrics") or []
    target = Target(seen.scale.replicas, seen.scale.observed, seen.pods, tolerances(hpa["spec"]), now)
    namespace = hpa["metadata"]["namespace"]
    found = [proposal(m, answer, target, namespace=namespace) for m, answer in zip(metrics, seen.answers, strict=True)]
    failures = [f for f in found if isinstance(f, Failure)]
    notes = tuple(Note(f.reason, f.cause) for f in failures)
    statuses = [f.status if isinstance(f, Proposal) else {"type": ""} for f in found]
    highest = Proposal(0, "", {})
    for each in found:
        if isinstance(each, Proposal) and (highest.replicas == 0 or each.replicas > highest.replicas):
            highest = each
    if failures and (len(failures) == len(found) or highest.replicas < seen.scale.replicas):
        why = f"the HPA was unable to compute the replica count: {failures[0].cause}"
        conditions = with_condition(conditions, ACTIVE, False, failures[0].reason, why, now=now)
        words = f"invalid metrics ({len(failures)} invalid out of {len(found)}), first error is: {failures[0].words}"
        return _Wanted(conditions, None, "", statuses, (*notes, Note("FailedComputeMetricsReplicas", words)))
    message = f"the HPA was able to successfully calculate a replica count from {highest.metric}"
    conditions = with_condition(conditions, ACTIVE, True, "ValidMetricFound", message, now=now)
    return _Wanted(conditions, highest.replicas, highest.metric, statuses, notes)


def _invalid_selector(seen: Seen) -> tuple[str, str, Note] | None:
    if not seen.scale.selector:
        return "InvalidSelector", "the HPA target's scale is missing a selector", Note("SelectorRequired", "selector is required")
    if seen.selector_problem:
        words = f"couldn't convert selector into a corresponding internal selector object: {seen.selector_problem}"
        return "InvalidSelector", words, Note("InvalidSelector", words)
    if seen.rivals:
        words = f"pods by selector {seen.scale.selector} are controlled by multiple HPAs: [{' '.join(seen.rivals)}]"
        return "AmbiguousSelector", words, Note("AmbiguousSelector", words)
    return None


def rivals(selectors: Mapping[tuple[str, str], Predicate], namespace: str, pods: Sequence[Object]) -> list[str]:
    """Return all autoscalers that choose one of these pods, if there are several."""
    labels = [pod["metadata"].get("labels") or {} for pod in pods]
    found = [f"{where}/{name}" for where, name in sorted(selectors) if where == namespace and any(map(selectors[where, name], labels))]
    return found if len(found) > 1 else []


def tolerances(spec: Object) -> Tolerances:
    behavior = spec.get("behavior") or {}
    given = {way: (behavior.get(way) or {}).get("tolerance") for way in ("scaleDown", "scaleUp")}
    down, up = (None if written is None else float(quantity.parse(written)) for written in given.values())
    default = Tolerances()
    return Tolerances(default.down if down is None else down, default.up if up is None else up)


def _conditions(hpa: Object) -> list[Object]:
    return list((hpa.get("status") or {}).get("conditions") or ())


def _status(hpa: Object, wanted: _Wanted, current: int, desired: int) -> Object:
    before = hpa.get("status") or {}
    kept = {key: before[key] for key in ("lastScaleTime",) if key in before}
    return {
        **kept,
        **({"currentReplicas": current} if current else {}),
        "desiredReplicas": desired,
        "currentMetrics": wanted.statuses,
        "conditions": wanted.conditions,
    }
