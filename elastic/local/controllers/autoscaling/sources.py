"""Make a proposal from each of the five metric sources of an autoscaler, in the words of kube-controller-manager. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.local.controllers.autoscaling import replicas
from elastic.local.controllers.autoscaling.amounts import text, thousandths
from elastic.local.controllers.autoscaling.pods import Problem, Value
from elastic.local.controllers.autoscaling.replicas import Count, Target

Object = dict[str, Any]
Answer = Mapping[str, Value] | Sequence[int] | Problem
"""Answer of a metrics API: values of pods by name, or amounts in thousandths, or the problem."""


@dataclass(frozen=True, slots=True)
class Proposal:
    replicas: int
    metric: str
    status: Object


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a metric proposes nothing. `reason` and `cause` are for the condition and an Event, `words` for the autoscaler as a whole."""

    reason: str
    cause: str
    words: str


def proposal(metric: Object, answer: Answer, target: Target, *, namespace: str) -> Proposal | Failure:
    match metric["type"]:
        case "Resource":
            source = metric["resource"]
            return _resource(source, answer, target, container="", words=f"failed to get {source['name']} resource metric value")
        case "ContainerResource":
            source = metric["containerResource"]
            words = f"failed to get {source['container']} container metric value"
            return _resource(source, answer, target, container=source["container"], words=words)
        case "Pods":
            return _pods(metric["pods"], answer, target)
        case "Object":
            return _object(metric["object"], answer, target, namespace)
        case "External":
            return _external(metric["external"], answer, target, namespace)
    words = f'unknown metric source type "{metric["type"]}"'
    return Failure("InvalidMetricSourceType", words, words)


def _resource(source: Object, answer: Answer, target: Target, *, container: str, words: str) -> Proposal | Failure:
    name, wanted = source["name"], source["target"]
    by_average = wanted.get("averageValue") is not None
    reason = "FailedGetContainerResourceMetric" if container else "FailedGetResourceMetric"
    found: Count | Problem
    if isinstance(answer, Problem):
        found = Problem(f"unable to get metrics for resource {name}: {answer.words}")
    elif by_average:
        found = replicas.by_average(target, _values(answer), average=thousandths(wanted["averageValue"]), resource=name)
    else:
        percent = wanted["averageUtilization"]
        found = replicas.by_utilization(target, _values(answer), percent=percent, resource=name, container=container)
    if isinstance(found, Problem):
        cause = f"failed to get {name} {'usage' if by_average else 'utilization'}: {found.words}"
        return Failure(reason, cause, f"{words}: {cause}")
    current: Object = {"averageValue": text(found.amount, is_memory=name == "memory")}
    current |= {} if by_average else {"averageUtilization": found.utilization}
    kind = "container resource" if container and not by_average else "resource"
    metric = f"{name} {kind}" if by_average else f"{name} {kind} utilization (percentage of request)"
    described = {"name": name, "current": current} | ({"container": container} if container else {})
    return Proposal(found.replicas, metric, _status("ContainerResource" if container else "Resource", described))


def _pods(source: Object, answer: Answer, target: Target) -> Proposal | Failure:
    name = source["metric"]["name"]
    found: Count | Problem
    if isinstance(answer, Problem):
        found = Problem(f"unable to get metric {name}: {answer.words}")
    else:
        found = replicas.by_average(target, _values(answer), average=thousandths(source["target"]["averageValue"]))
    if isinstance(found, Problem):
        return Failure("FailedGetPodsMetric", found.words, f"failed to get pods metric value: {found.words}")
    described = {"metric": source["metric"], "current": {"averageValue": text(found.amount)}}
    return Proposal(found.replicas, f"pods metric {name}", _status("Pods", described))


def _object(source: Object, answer: Answer, target: Target, namespace: str) -> Proposal | Failure:
    metric, described, wanted = source["metric"], source["describedObject"], source["target"]
    name, per_pod = metric["name"], wanted["type"] == "AverageValue"
    found: Count | Problem
    if isinstance(answer, Problem):
        # The real controller has this order of words too.
        found = Problem(f"unable to get metric {name}: {described['kind']} on {namespace} {described['name']}/{answer.words}")
    else:
        found = _of_one(target, replicas.total(_amounts(answer)), wanted, per_pod=per_pod)
    if isinstance(found, Problem):
        words = f"failed to get {name} object metric: {found.words}" if per_pod else found.words
        return Failure("FailedGetObjectMetric", found.words, f"failed to get object metric value: {words}")
    told = f"external metric {name}({shown(metric.get('selector'))})" if per_pod else f"{described['kind']} metric {name}"
    current = {"averageValue" if per_pod else "value": text(found.amount)}
    return Proposal(found.replicas, told, _status("Object", {"metric": metric, "describedObject": described, "current": current}))


def _external(source: Object, answer: Answer, target: Target, namespace: str) -> Proposal | Failure:
    metric, wanted = source["metric"], source["target"]
    name, per_pod = metric["name"], wanted.get("averageValue") is not None
    selector = shown(metric.get("selector"))
    found: Count | Problem
    if isinstance(answer, Problem):
        found = Problem(f"unable to get external metric {namespace}/{name}/{selector}: {answer.words}")
    else:
        found = _of_one(target, replicas.total(_amounts(answer)), wanted, per_pod=per_pod)
    if isinstance(found, Problem):
        words = f"failed to get {name} external metric" if per_pod else f"failed to get external metric {name}"
        whole = f"failed to get {name} external metric value: {words}: {found.words}"
        return Failure("FailedGetExternalMetric", found.words, whole)
    described = {"metric": metric, "current": {"averageValue" if per_pod else "value": text(found.amount)}}
    return Proposal(found.replicas, f"external metric {name}({selector})", _status("External", described))


def _of_one(target: Target, amount: int, wanted: Object, *, per_pod: bool) -> Count | Problem:
    if per_pod:
        return replicas.by_value_per_pod(target, amount, average=thousandths(wanted["averageValue"]))
    return replicas.by_value(target, amount, value=thousandths(wanted["value"]))


def _values(answer: Mapping[str, Value] | Sequence[int]) -> Mapping[str, Value]:
    assert isinstance(answer, Mapping)
    return answer


def _amounts(answer: Mapping[str, Value] | Sequence[int]) -> Sequence[int]:
    assert not isinstance(answer, Mapping)
    return answer


def _status(kind: str, described: Object) -> Object:
    return {"type": kind, kind[0].lower() + kind[1:]: described}


def shown(selector: Object | None) -> str:
    """Return a label selector as Go prints it."""
    if selector is None:
        return "nil"
    labels = "".join(f"{key}: {value}," for key, value in sorted((selector.get("matchLabels") or {}).items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{e['key']},Operator:{e['operator']},Values:[{' '.join(e.get('values') or ())}],}},"
        for e in selector.get("matchExpressions") or ()
    )
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
