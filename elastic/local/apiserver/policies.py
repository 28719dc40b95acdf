"""Strategies of budgets, autoscalers, leases, priority classes, webhook configurations and definitions of custom resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from elastic.kube import quantity
from elastic.local.apiserver import crdchecks, definitions, hookchecks, rows, workloadrows
from elastic.local.apiserver.errors import Cause, Json, bad, forbidden_field, required, unsupported
from elastic.local.apiserver.resources import Strategy
from elastic.local.apiserver.tables import column


class Budgets(Strategy):
    generation = True
    has_status = True
    needs_version = True

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}

    def validate(self, obj: Json, /) -> list[Cause]:
        spec = obj.get("spec") or {}
        if "minAvailable" in spec and "maxUnavailable" in spec:
            shape = {
                "MinAvailable": spec["minAvailable"],
                "Selector": spec.get("selector"),
                "MaxUnavailable": spec["maxUnavailable"],
                "UnhealthyPodEvictionPolicy": None,
            }
            return [bad("spec", shape, "minAvailable and maxUnavailable cannot be both set")]
        out = [c for k in ("minAvailable", "maxUnavailable") if k in spec for c in _share_causes(spec[k], f"spec.{k}")]
        for i, e in enumerate((spec.get("selector") or {}).get("matchExpressions") or ()):
            if e.get("operator") not in ("In", "NotIn", "Exists", "DoesNotExist"):
                out.append(bad(f"spec.selector.matchExpressions[{i}].operator", e.get("operator", ""), "not a valid selector operator"))
        return out

    def columns(self) -> list[Json]:
        return rows.BUDGET

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.budget(obj)


def _share_causes(value: Any, path: str) -> list[Cause]:
    """A number of pods, or a percentage of them."""
    if isinstance(value, int):
        return [bad(path, value, "must be greater than or equal to 0")] if value < 0 else []
    if not re.fullmatch(r"[0-9]+%", value):
        return [
            bad(
                path,
                value,
                "a percentage is a whole number followed by %, such as 25%",
            )
        ]
    return [bad(path, value, "must not be greater than 100%")] if int(value[:-1]) > 100 else []


_SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}],
}
_SCALE_DOWN = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
LONGEST_WINDOW_S, LONGEST_PERIOD_S = 3600, 1800
_METRICS = {"ContainerResource": "containerResource", "External": "external", "Object": "object", "Pods": "pods", "Resource": "resource"}


def _cpu_metric(percent: int) -> Json:
    return {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}


def _autoscaler_causes(spec: Json) -> list[Cause]:
    out: list[Cause] = []
    most, least, target = spec.get("maxReplicas", 0), spec.get("minReplicas", 1), spec.get("scaleTargetRef") or {}
    if most < 1:
        out.append(required("spec.maxReplicas", "must be set and greater than 0"))
    if least < 1:
        out.append(bad("spec.minReplicas", least, "must be greater than or equal to 1"))
    if most < least:
        out.append(bad("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`"))
    for key in ("kind", "name"):
        if not target.get(key):
            out.append(required(f"spec.scaleTargetRef.{key}"))
    if "/" not in target.get("apiVersion", ""):
        out.append(bad("spec.scaleTargetRef.apiVersion", target.get("apiVersion", ""), "apiVersion must specify API group"))
    for i, metric in enumerate(spec.get("metrics") or ()):
        out += _metric_causes(metric, f"spec.metrics[{i}]")
    for way, rules in (spec.get("behavior") or {}).items():
        out += _rules_causes(rules, f"spec.behavior.{way}")
    return out


def _metric_causes(metric: Json, path: str) -> list[Cause]:
    kind = metric.get("type", "")
    if kind not in _METRICS:
        return [unsupported(f"{path}.type", kind, _METRICS)]
    key = _METRICS[kind]
    source = metric.get(key)
    if source is None:
        return [required(f"{path}.{key}", "must populate information for the given metric source")]
    target = source.get("target") or {}
    if kind in ("Resource", "ContainerResource") and not target.get("averageUtilization") and not target.get("averageValue"):
        return [required(f"{path}.{key}.target.averageUtilization", "must set either a target raw value or a target utilization")]
    if kind in ("Pods",) and not target.get("averageValue"):
        return [required(f"{path}.{key}.target.averageValue", "must specify a positive target averageValue")]
    if kind in ("Object", "External") and not target.get("value") and not target.get("averageValue"):
        return [required(f"{path}.{key}.target.averageValue", "must set either a target value for metric or a per-pod target")]
    return list(_target_causes(target, f"{path}.{key}.target"))


def _amount(value: Any) -> Fraction:
    try:
        return quantity.parse(value)
    except ValueError:
        return Fraction(-1)


def _target_causes(target: Json, path: str) -> Iterator[Cause]:
    """A target of nothing would be divided by."""
    kind, share = target.get("type", ""), target.get("averageUtilization")
    if not kind:
        yield required(f"{path}.type", "must specify a metric target type")
    elif kind not in ("Utilization", "Value", "AverageValue"):
        yield bad(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue")
    for name in ("value", "averageValue"):
        if target.get(name) is not None and _amount(target[name]) <= 0:
            yield bad(f"{path}.{name}", target[name], "must be positive")
    if share is not None and share < 1:
        yield bad(f"{path}.averageUtilization", share, "must be greater than 0")


def _rules_causes(rules: Json, path: str) -> Iterator[Cause]:
    window, choice, tolerance = rules.get("stabilizationWindowSeconds"), rules.get("selectPolicy"), rules.get("tolerance")
    if window is not None and not 0 <= window <= LONGEST_WINDOW_S:
        yield bad(f"{path}.stabilizationWindowSeconds", window, f"must be from 0 to {LONGEST_WINDOW_S}")
    if choice is not None and choice not in ("Max", "Min", "Disabled"):
        yield unsupported(f"{path}.selectPolicy", choice, ("Disabled", "Max", "Min"))
    if tolerance is not None and _amount(tolerance) < 0:
        yield bad(f"{path}.tolerance", tolerance, "must be greater than or equal to 0")
    if not rules.get("policies"):
        yield required(f"{path}.policies", "must specify at least one Policy")
    for index, policy in enumerate(rules.get("policies") or ()):
        at, period = f"{path}.policies[{index}]", policy.get("periodSeconds", 0)
        if policy.get("type") not in ("Pods", "Percent"):
            yield unsupported(f"{at}.type", policy.get("type", ""), ("Percent", "Pods"))
        if policy.get("value", 0) <= 0:
            yield bad(f"{at}.value", policy.get("value", 0), "must be greater than zero")
        if not 0 < period <= LONGEST_PERIOD_S:
            yield bad(f"{at}.periodSeconds", period, f"must be greater than zero and at most {LONGEST_PERIOD_S}")


class Autoscalers(Strategy):
    has_status = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("minReplicas", 1)
        if not spec.get("metrics"):
            spec["metrics"] = [_cpu_metric(80)]
        behavior = spec.get("behavior")
        if behavior is not None:
            behavior["scaleUp"] = {**_SCALE_UP, **(behavior.get("scaleUp") or {})}
            behavior["scaleDown"] = {**_SCALE_DOWN, **(behavior.get("scaleDown") or {})}

    def validate(self, obj: Json, /) -> list[Cause]:
        return _autoscaler_causes(obj["spec"])

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"desiredReplicas": 0, "currentMetrics": None}

    def columns(self) -> list[Json]:
        return rows.AUTOSCALER

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.autoscaler(obj)


class AutoscalersV1(Autoscalers):
    """autoscaling/v1: the same objects, with the cpu metric in a field of its own; other metrics are not shown."""

    def same_form(self, revision: int, /) -> bool:
        return False

    def default(self, obj: Json, /) -> None:
        obj.setdefault("spec", {}).setdefault("minReplicas", 1)

    def to_storage(self, obj: Json, /) -> Json:
        spec = dict(obj["spec"])
        spec.setdefault("metrics", [_cpu_metric(spec.pop("targetCPUUtilizationPercentage", 80))])
        return {**obj, "spec": spec}

    def from_storage(self, obj: Json, /) -> Json:
        spec = dict(obj["spec"])
        for metric in spec.pop("metrics", None) or ():
            target = (metric.get("resource") or {}).get("target") or {}
            if (metric.get("resource") or {}).get("name") == "cpu" and "averageUtilization" in target:
                spec["targetCPUUtilizationPercentage"] = target["averageUtilization"]
        status = {k: v for k, v in (obj.get("status") or {}).items() if k in ("currentReplicas", "desiredReplicas", "lastScaleTime")}
        return {**obj, "spec": spec, "status": {"currentReplicas": 0, "desiredReplicas": 0, **status}}


class Leases(Strategy):
    needs_version = True
    creates_on_update = True

    def validate(self, obj: Json, /) -> list[Cause]:
        spec = obj.get("spec") or {}
        out = []
        if "leaseDurationSeconds" in spec and spec["leaseDurationSeconds"] <= 0:
            out.append(bad("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
        if "leaseTransitions" in spec and spec["leaseTransitions"] < 0:
            out.append(bad("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
        return out

    def columns(self) -> list[Json]:
        return rows.LEASE

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.lease(obj)


_CRITICAL = "Used for system critical pods that must"
SYSTEM_PRIORITIES = {
    "system-cluster-critical": (2_000_000_000, f"{_CRITICAL} run in the cluster, but can be moved to another node if necessary."),
    "system-node-critical": (2_000_001_000, f"{_CRITICAL} not be moved from their current node."),
}


class PriorityClasses(Strategy):
    generation = True

    def default(self, obj: Json, /) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")

    def validate(self, obj: Json, /) -> list[Cause]:
        name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
        out = []
        if name.startswith("system-") and name not in SYSTEM_PRIORITIES:
            reserved = "priority class names with 'system-' prefix are reserved for system use only"
            why = f"{reserved}. error: {name} is not a known system priority class"
            out.append(forbidden_field("metadata.name", why))
        elif name not in SYSTEM_PRIORITIES and value > 1_000_000_000:
            out.append(forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000"))
        return out

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        changed = [k for k in ("value", "preemptionPolicy") if new.get(k) != old.get(k)]
        return [forbidden_field(k, "may not be changed in an update.") for k in changed]

    def columns(self) -> list[Json]:
        return rows.PRIORITY

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.priority(obj)


class Webhooks(Strategy):
    generation = True

    def default(self, obj: Json, /) -> None:
        for hook in obj.get("webhooks") or ():
            hook.setdefault("failurePolicy", "Fail")
            hook.setdefault("matchPolicy", "Equivalent")
            hook.setdefault("namespaceSelector", {})
            hook.setdefault("objectSelector", {})
            hook.setdefault("timeoutSeconds", 10)
            for rule in hook.get("rules") or ():
                rule.setdefault("scope", "*")
            service = (hook.get("clientConfig") or {}).get("service")
            if service is not None:
                service.setdefault("port", 443)

    def validate(self, obj: Json, /) -> list[Cause]:
        return hookchecks.causes(obj)

    def columns(self) -> list[Json]:
        return workloadrows.HOOKS

    def cells(self, obj: Json, /) -> list[Any]:
        return workloadrows.hooks(obj)


class Definitions(Strategy):
    generation = True
    has_status = True
    needs_version = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        given = spec.setdefault("names", {})
        if given.get("kind"):
            given.setdefault("singular", given["kind"].lower())
            given.setdefault("listKind", given["kind"] + "List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, obj: Json, /) -> None:
        stored = [v["name"] for v in obj["spec"].get("versions") or () if v.get("storage")]
        obj["status"] = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored[:1]}

    def prepare_delete(self, obj: Json, /) -> None:
        definitions.mark_for_deletion(obj)

    def validate(self, obj: Json, /) -> list[Cause]:
        return crdchecks.causes(obj)

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        return crdchecks.update_causes(new, old)

    def columns(self) -> list[Json]:
        return [column("Name", format="name"), column("Created At", "date")]

    def cells(self, obj: Json, /) -> list[Any]:
        return [obj["metadata"]["name"], obj["metadata"]["creationTimestamp"]]
