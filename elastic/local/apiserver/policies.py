"""Strategies of budgets, autoscalers, leases, priority classes, webhook configurations and definitions of custom resources."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver import crdchecks, definitions
from elastic.local.apiserver.errors import Cause, Json, bad
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
        return []


class Autoscalers(Strategy):
    has_status = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("minReplicas", 1)
        if not spec.get("metrics"):
            spec["metrics"] = [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
            ]

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"desiredReplicas": 0, "currentMetrics": None}


class AutoscalersV1(Autoscalers):
    """autoscaling/v1: one metric, cpu, in a field of its own."""


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


class PriorityClasses(Strategy):
    generation = True

    def default(self, obj: Json, /) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


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

    def validate_update(self, new: Json, old: Json, /) -> list[Cause]:
        return crdchecks.update_causes(new, old)

    def columns(self) -> list[Json]:
        return [column("Name", format="name"), column("Created At", "date")]

    def cells(self, obj: Json, /) -> list[Any]:
        return [obj["metadata"]["name"], obj["metadata"]["creationTimestamp"]]
