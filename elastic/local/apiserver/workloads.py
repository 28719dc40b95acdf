"""Deployments and their like, and jobs: stored and defaulted, with a generation; no controller here acts on them."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver import workloadrows
from elastic.local.apiserver.errors import Cause, Json, bad, required
from elastic.local.apiserver.names import IMMUTABLE
from elastic.local.apiserver.podchecks import spec_causes
from elastic.local.apiserver.podspec import default_pod_spec
from elastic.local.apiserver.resources import Strategy
from elastic.local.selectors import matches


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

    def validate(self, obj: Json, /) -> list[Cause]:
        spec = obj.get("spec") or {}
        template = spec.get("template") or {}
        labels = (template.get("metadata") or {}).get("labels") or {}
        out = _replica_causes(spec)
        if not spec.get("selector"):
            out.append(required("spec.selector"))
        elif not matches(spec["selector"], labels):
            out.append(bad("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
        return out + spec_causes(template.get("spec") or _DEFAULTED, "spec.template.spec")

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        selector = (new.get("spec") or {}).get("selector")
        return [] if selector == (old.get("spec") or {}).get("selector") else [bad("spec.selector", selector, IMMUTABLE)]

    def columns(self) -> list[Json]:
        return _COLUMNS[self._kind]

    def cells(self, obj: Json, /) -> list[Any]:
        return workloadrows.workload(self._kind, obj)


_COLUMNS = {
    "Deployment": workloadrows.DEPLOYMENT,
    "ReplicaSet": workloadrows.REPLICA_SET,
    "StatefulSet": workloadrows.STATEFUL_SET,
    "DaemonSet": workloadrows.DAEMON_SET,
}
_DEFAULTED: Json = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}


def _replica_causes(spec: Json) -> list[Cause]:
    replicas = spec.get("replicas", 0)
    return [bad("spec.replicas", replicas, "must be greater than or equal to 0")] if replicas < 0 else []


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

    def validate(self, obj: Json, /) -> list[Cause]:
        template = (obj.get("spec") or {}).get("template") or {}
        out = spec_causes(template.get("spec") or _DEFAULTED, "spec.template.spec")
        if (template.get("spec") or {}).get("restartPolicy", "Always") == "Always":
            out.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
        return out

    def columns(self) -> list[Json]:
        return workloadrows.JOB

    def cells(self, obj: Json, /) -> list[Any]:
        return workloadrows.job(obj)


class CronJobs(Strategy):
    generation = True
    has_status = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        for key, value in (
            ("concurrencyPolicy", "Allow"),
            ("suspend", False),
            ("successfulJobsHistoryLimit", 3),
            ("failedJobsHistoryLimit", 1),
        ):
            spec.setdefault(key, value)

    def columns(self) -> list[Json]:
        return workloadrows.CRON_JOB

    def cells(self, obj: Json, /) -> list[Any]:
        return workloadrows.cron_job(obj)
