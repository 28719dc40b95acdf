"""Pods: defaults, what may be changed after creation, the grace of their deletion, selectable fields and table cells."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver import podchecks, podspec
from elastic.local.apiserver.errors import Cause, Json
from elastic.local.apiserver.objects import now_text
from elastic.local.apiserver.resources import Strategy

FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
)


class Pods(Strategy):
    generation = True
    has_status = True
    graceful = True
    answers_deleted = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        podspec.default_pod_spec(spec)
        podspec.default_requests(spec)
        spec.setdefault("enableServiceLinks", True)

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"phase": "Pending", "qosClass": podspec.qos_class(obj.get("spec") or {})}
        gates = (obj.get("spec") or {}).get("schedulingGates")
        if gates:
            obj["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "lastProbeTime": None,
                    "lastTransitionTime": now_text(),
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]

    def prepare_status(self, new: Json, old: Json, /) -> Json:
        out = super().prepare_status(new, old)
        out.setdefault("status", {}).setdefault("qosClass", (old.get("status") or {}).get("qosClass", "BestEffort"))
        return out

    def validate(self, obj: Json, /) -> list[Cause]:
        return podchecks.spec_causes(obj.get("spec") or {}, "spec")

    def validate_update(self, new: Json, old: Json, /) -> list[Cause]:
        # Most updates of pods change only labels and annotations, and a stored spec has been checked.
        return [] if new["spec"] == old["spec"] else super().validate_update(new, old)

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        return podchecks.update_causes(new["spec"], old["spec"])

    def fields(self, obj: Json, /) -> dict[str, str]:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        return {
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.restartPolicy": spec.get("restartPolicy", ""),
            "spec.schedulerName": spec.get("schedulerName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "spec.hostNetwork": str(bool(spec.get("hostNetwork"))).lower(),
            "status.phase": status.get("phase", ""),
            "status.podIP": status.get("podIP", ""),
            "status.podIPs": ",".join(p["ip"] for p in status.get("podIPs") or ()) or status.get("podIP", ""),
            "status.nominatedNodeName": status.get("nominatedNodeName", ""),
        }

    def selectable(self) -> tuple[str, ...]:
        return FIELDS

    def grace(self, obj: Json, asked: int | None, /) -> int:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        seconds = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
        if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
            return 0
        return max(int(seconds), 1) if seconds < 0 else int(seconds)

    def columns(self) -> list[Json]:
        from elastic.local.apiserver.tables import column

        return [
            column("Name", format="name"),
            column("Ready"),
            column("Status"),
            column("Restarts"),
            column("Age"),
            column("IP", priority=1),
            column("Node", priority=1),
            column("Nominated Node", priority=1),
            column("Readiness Gates", priority=1),
        ]

    def cells(self, obj: Json, /) -> list[Any]:
        from elastic.local.apiserver.podtable import pod_cells

        return pod_cells(obj)
