"""Strategies of budgets, autoscalers, leases, priority classes, webhook configurations and definitions of custom resources."""

from __future__ import annotations

import re
from typing import Any

from elastic.local.apiserver import autoscalerchecks, crdchecks, definitions, hookchecks, policyrows, rows
from elastic.local.apiserver.errors import Cause, Json, bad, forbidden_field
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
    """Return the problems of a number of pods, or of a percentage of them."""
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


def _cpu_metric(percent: int) -> Json:
    return {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}


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
        return list(autoscalerchecks.causes(obj["spec"]))

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"desiredReplicas": 0, "currentMetrics": None}

    def columns(self) -> list[Json]:
        return rows.AUTOSCALER

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.autoscaler(obj)


class AutoscalersV1(Autoscalers):
    """Autoscalers as autoscaling/v1 shows them: the cpu metric has its own field, and other metrics are not shown."""

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
        return policyrows.HOOKS

    def cells(self, obj: Json, /) -> list[Any]:
        return policyrows.hooks(obj)


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
        stored = [v.get("name", "") for v in obj["spec"].get("versions") or () if v.get("storage")]
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
