"""Decide whether a user may do something. Masters may do everything; for others the roles bound to them or their groups decide.

This module also finds rights that a user does not have and so may not grant. It reads roles and bindings again after a change of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.store import Store

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
_KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")

_DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/")

BOOTSTRAP_ROLES: dict[str, list[Json]] = {
    "cluster-admin": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    "system:discovery": [
        {
            "nonResourceURLs": [*_DISCOVERY],
            "verbs": ["get"],
        }
    ],
    "system:basic-user": [
        {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], "verbs": ["create"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
    ],
    "system:auth-delegator": [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ],
}  # fmt: skip
BOOTSTRAP_BINDINGS = {"cluster-admin": MASTERS, "system:discovery": "system:authenticated", "system:basic-user": "system:authenticated"}


@dataclass(frozen=True, slots=True)
class Grant:
    rule: Json
    namespace: str
    """Namespace in which the grant holds; empty for all."""
    reason: str


class Rbac:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._grants: dict[str, list[Grant]] | None = None
        for plural in _KINDS:
            store.subscribe(f"{plural}.{GROUP}", lambda _: self._forget())

    def _forget(self) -> None:
        self._grants = None

    def allows(self, user: User, attributes: Json, /) -> tuple[bool, str]:
        """Return whether the user may do this, and the reason.

        The attributes are a verb with group, resource, subresource, namespace and name, or a verb with a path.
        """
        if MASTERS in user.groups:
            return True, ""
        for grant in self._of(user):
            if grant.namespace and grant.namespace != attributes.get("namespace"):
                continue
            if _covers(grant.rule, attributes):
                return True, grant.reason
        return False, ""

    def _of(self, user: User) -> Iterator[Grant]:
        if self._grants is None:
            self._grants = self._read()
        for subject in (f"User/{user.name}", *(f"Group/{g}" for g in user.groups)):
            yield from self._grants.get(subject, ())

    def _read(self) -> dict[str, list[Grant]]:
        out: dict[str, list[Grant]] = {}
        for plural in ("clusterrolebindings", "rolebindings"):
            for entry in self._store.entries(f"{plural}.{GROUP}"):
                binding = entry.load()
                reference = binding["roleRef"]
                kind = "ClusterRoleBinding" if plural == "clusterrolebindings" else "RoleBinding"
                where = f"{entry.name}/{entry.namespace}" if entry.namespace else entry.name
                for subject in binding.get("subjects") or ():
                    to = f'{subject["kind"]} "{subject["name"]}{"/" + subject["namespace"] if subject.get("namespace") else ""}"'
                    reason = f'RBAC: allowed by {kind} "{where}" of {reference["kind"]} "{reference["name"]}" to {to}'
                    for rule in self.rules(reference, entry.namespace) or ():
                        out.setdefault(_subject(subject, entry.namespace), []).append(Grant(rule, entry.namespace, reason))
        return out

    def rules(self, reference: Json, namespace: str) -> list[Json] | None:
        """Return the rules of the role that a binding refers to, or None if the role does not exist."""
        if reference.get("kind") == "ClusterRole":
            entry = self._store.get(f"clusterroles.{GROUP}", "", reference.get("name", ""))
        else:
            entry = self._store.get(f"roles.{GROUP}", namespace, reference.get("name", ""))
        return (entry.load().get("rules") or []) if entry else None

    def held(self, user: User, namespace: str) -> list[Json]:
        """Return all rules that hold for a user in a namespace."""
        if MASTERS in user.groups:
            return [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
        return [g.rule for g in self._of(user) if not g.namespace or g.namespace == namespace]

    def lacking(self, user: User, rules: list[Json], namespace: str) -> list[Json]:
        """Return the rules whose rights the user does not have, and so may not grant."""
        if MASTERS in user.groups:
            return []
        held = self.held(user, namespace)
        return [r for r in rules if not all(any(_covers(h, a) for h in held) for a in spelled_out(r))]


def _subject(subject: Json, namespace: str) -> str:
    if subject["kind"] == "ServiceAccount":
        return f"User/system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
    return f"{subject['kind']}/{subject['name']}"


def spelled_out(rule: Json) -> Iterator[Json]:
    """Yield each single right of a rule, as attributes of a request."""
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield {"verb": verb, "path": path}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                plain, _, sub = resource.partition("/")
                for name in rule.get("resourceNames") or ("",):
                    yield {"verb": verb, "group": group, "resource": plain, "subresource": sub, "name": name}


def _covers(rule: Json, wanted: Json) -> bool:
    if not _among(wanted["verb"], rule.get("verbs")):
        return False
    if "path" in wanted:
        return any(_path_matches(p, wanted["path"]) for p in rule.get("nonResourceURLs") or ())
    if not _among(wanted.get("group", ""), rule.get("apiGroups")):
        return False
    names = rule.get("resourceNames")
    if names and wanted.get("name", "") not in names:
        return False
    resource, sub = wanted.get("resource", ""), wanted.get("subresource", "")
    listed = rule.get("resources") or ()
    full = f"{resource}/{sub}" if sub else resource
    return "*" in listed or full in listed or bool(sub and f"*/{sub}" in listed)


def _among(value: str, listed: list[str] | None) -> bool:
    return bool(listed) and ("*" in listed or value in listed)  # type: ignore[operator]


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))
