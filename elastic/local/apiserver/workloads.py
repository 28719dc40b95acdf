"""Deployments and their like, and jobs: stored and defaulted, with a generation; no controller here acts on them."""

from __future__ import annotations

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.podspec import default_pod_spec
from elastic.local.apiserver.resources import Strategy


class Workload(Strategy):
    generation = True
    has_status = True

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {} if self._kind == "Deployment" else {"replicas": 0}

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        if self._kind != "DaemonSet":
            spec.setdefault("replicas", 1)
        template = spec.get("template") or {}
        if "spec" in template:
            default_pod_spec(template["spec"])
        if self._kind == "Deployment":
            strategy = spec.setdefault("strategy", {})
            if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
                rolling = strategy.setdefault("rollingUpdate", {})
                rolling.setdefault("maxUnavailable", "25%")
                rolling.setdefault("maxSurge", "25%")
            spec.setdefault("revisionHistoryLimit", 10)
            spec.setdefault("progressDeadlineSeconds", 600)


class Jobs(Strategy):
    generation = True
    has_status = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        for key, value in (
            ("completions", 1),
            ("parallelism", 1),
            ("backoffLimit", 6),
            ("completionMode", "NonIndexed"),
            ("suspend", False),
        ):
            spec.setdefault(key, value)
        template = spec.get("template") or {}
        if "spec" in template:
            default_pod_spec(template["spec"])
