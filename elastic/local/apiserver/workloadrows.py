"""Columns and cells of deployments and their like, jobs, quotas and roles, as a real server shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.tables import age, column, duration

NAME, AGE = column("Name", format="name"), column("Age")
_WIDE = [column("Containers", priority=1), column("Images", priority=1), column("Selector", priority=1)]
REPLICA_SET = [NAME, column("Desired", "integer"), column("Current", "integer"), column("Ready", "integer"), AGE, *_WIDE]
STATEFUL_SET = [NAME, column("Ready"), AGE, *_WIDE[:2]]
DEPLOYMENT = [NAME, column("Ready"), column("Up-to-date", "integer"), column("Available", "integer"), AGE, *_WIDE]
DAEMON_SET = [
    NAME,
    *(column(name, "integer") for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
    column("Node Selector"),
    AGE,
    *_WIDE,
]
JOB = [NAME, column("Status"), column("Completions"), column("Duration"), AGE, *_WIDE]
CRON_JOB = [
    NAME,
    column("Schedule"),
    column("Timezone"),
    column("Suspend", "boolean"),
    column("Active", "integer"),
    column("Last Schedule"),
    AGE,
    *_WIDE,
]
QUOTA = [NAME, column("Request"), column("Limit"), AGE]
ROLE = [NAME, column("Created At", "date")]
BINDING = [NAME, column("Role"), AGE, *(column(name, priority=1) for name in ("Users", "Groups", "ServiceAccounts"))]
HOOKS = [NAME, column("Webhooks", "integer"), AGE]


def _created(obj: Json) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def _labels(labels: Json | None) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted((labels or {}).items())) or "<none>"


def _wide(spec: Json) -> list[Any]:
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    names, images = ",".join(c.get("name", "") for c in containers), ",".join(c.get("image", "") for c in containers)
    return [names, images, _labels((spec.get("selector") or {}).get("matchLabels"))]


def workload(kind: str, obj: Json) -> list[Any]:
    name, spec, status = obj["metadata"]["name"], obj.get("spec") or {}, obj.get("status") or {}
    wanted, ready = spec.get("replicas", 0), status.get("readyReplicas", 0)
    match kind:
        case "Deployment":
            counts = [f"{ready}/{wanted}", status.get("updatedReplicas", 0), status.get("availableReplicas", 0)]
            return [name, *counts, _created(obj), *_wide(spec)]
        case "StatefulSet":
            return [name, f"{ready}/{wanted}", _created(obj), *_wide(spec)[:2]]
        case "DaemonSet":
            keys = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
            selector = _labels(((spec.get("template") or {}).get("spec") or {}).get("nodeSelector"))
            return [name, *(status.get(key, 0) for key in keys), selector, _created(obj), *_wide(spec)]
    return [name, wanted, status.get("replicas", 0), ready, _created(obj), *_wide(spec)]


def job(obj: Json) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    conditions = {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}
    word = next((w for w in ("Complete", "Failed", "Suspended") if w in conditions), "Running")
    began, ended = status.get("startTime"), status.get("completionTime")
    lasted = "" if not began else age(began)
    if began and ended:
        lasted = duration(int((datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()))
    done = f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}"
    return [obj["metadata"]["name"], word, done, lasted, _created(obj), *_wide(spec)]


def cron_job(obj: Json) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last = age(status["lastScheduleTime"]) if status.get("lastScheduleTime") else "<none>"
    zone, active = spec.get("timeZone") or "<none>", len(status.get("active") or ())
    cells = [obj["metadata"]["name"], spec.get("schedule", ""), zone, str(bool(spec.get("suspend"))), active, last, _created(obj)]
    return [*cells, *_wide((spec.get("jobTemplate") or {}).get("spec") or {})]


def quota(obj: Json) -> list[Any]:
    status = obj.get("status") or {}
    used, hard = status.get("used") or {}, (obj.get("spec") or {}).get("hard") or {}
    shown = {key: f"{key}: {used.get(key, 0)}/{limit}" for key, limit in sorted(hard.items())}
    limits = [text for key, text in shown.items() if key.startswith("limits.")]
    return [obj["metadata"]["name"], ", ".join(t for t in shown.values() if t not in limits), ", ".join(limits), _created(obj)]


def role(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp", "")]


def binding(obj: Json) -> list[Any]:
    reference, subjects = obj.get("roleRef") or {}, obj.get("subjects") or ()

    def named(kind: str) -> str:
        return ", ".join(f"{s['namespace']}/{s['name']}" if s.get("namespace") else s["name"] for s in subjects if s["kind"] == kind)

    where = f"{reference.get('kind')}/{reference.get('name')}"
    return [obj["metadata"]["name"], where, _created(obj), named("User"), named("Group"), named("ServiceAccount")]


def hooks(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], len(obj.get("webhooks") or ()), _created(obj)]
