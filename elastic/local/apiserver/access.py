"""Strategies of roles, bindings and reviews."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver import names, policyrows
from elastic.local.apiserver.errors import Cause, Json, bad, required, unsupported
from elastic.local.apiserver.resources import Strategy

RBAC = "rbac.authorization.k8s.io"


class Roles(Strategy):
    def name_causes(self, name: str, path: str) -> list[Cause]:
        return [bad(path, name, e) for e in names.path_errors(name)]

    def validate(self, obj: Json, /) -> list[Cause]:
        out = []
        for i, rule in enumerate(obj.get("rules") or ()):
            if not rule.get("verbs"):
                out.append(required(f"rules[{i}].verbs", "verbs must contain at least one value"))
        return out

    def columns(self) -> list[Json]:
        return policyrows.ROLE

    def cells(self, obj: Json, /) -> list[Any]:
        return policyrows.role(obj)


class Bindings(Roles):
    def default(self, obj: Json, /) -> None:
        obj.get("roleRef", {}).setdefault("apiGroup", RBAC)
        for subject in obj.get("subjects") or ():
            if subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", RBAC)

    def validate(self, obj: Json, /) -> list[Cause]:
        out = []
        for key in ("kind", "name"):
            if not (obj.get("roleRef") or {}).get(key):
                out.append(required(f"roleRef.{key}"))
        kinds = ("Role", "ClusterRole") if obj["kind"] == "RoleBinding" else ("ClusterRole",)
        kind = (obj.get("roleRef") or {}).get("kind")
        if kind and kind not in kinds:
            out.insert(0, unsupported("roleRef.kind", kind, kinds))
        for i, subject in enumerate(obj.get("subjects") or ()):
            out += [required(f"subjects[{i}].{k}") for k in ("kind", "name") if not subject.get(k)]
            if subject.get("kind") == "ServiceAccount" and not subject.get("namespace") and obj["kind"] == "ClusterRoleBinding":
                out.append(required(f"subjects[{i}].namespace"))
        return out

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        return [bad("roleRef", new.get("roleRef"), "cannot change roleRef")] if new.get("roleRef") != old.get("roleRef") else []

    def columns(self) -> list[Json]:
        return policyrows.BINDING

    def cells(self, obj: Json, /) -> list[Any]:
        return policyrows.binding(obj)


class Reviews(Strategy):
    """Answered by reviews.py and never stored."""
