"""Columns and cells of quotas, roles, bindings and webhooks, as a real server shows them."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.tables import age, column

NAME, AGE = column("Name", format="name"), column("Age")
QUOTA = [NAME, column("Request"), column("Limit"), AGE]
ROLE = [NAME, column("Created At", "date")]
BINDING = [NAME, column("Role"), AGE, *(column(name, priority=1) for name in ("Users", "Groups", "ServiceAccounts"))]
HOOKS = [NAME, column("Webhooks", "integer"), AGE]


def _created(obj: Json) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


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
