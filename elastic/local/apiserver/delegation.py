"""Refuse actions by which users would get rights that they do not have.

Users may grant only rights that they have themselves. With OwnerReferencesPermissionEnforcement, as in many clusters, they may set owners
only of objects that they may delete, and block an owner's deletion only if they may change its finalizers. No request shows that these
rights are used, so this module reports them to the audit.
"""

from __future__ import annotations

from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, forbidden, not_found
from elastic.local.apiserver.rbac import GROUP, MASTERS, Rbac, spelled_out
from elastic.local.apiserver.resources import Registry


class Delegation:
    def __init__(self, rbac: Rbac, registry: Registry, *, audit: Audit | None, guards_owners: bool) -> None:
        self._rbac, self._registry, self._audit, self._guards_owners = rbac, registry, audit, guards_owners

    def check(self, call: Call, new: Json, old: Json | None) -> None:
        if MASTERS in call.user.groups:
            return
        if call.kind.group == GROUP and not call.kind.custom:
            self._handed_out(call, new)
        if self._guards_owners and (call.kind.plural, call.subresource) != ("pods", "status"):
            self._owners(call, new, old)

    def _handed_out(self, call: Call, new: Json) -> None:
        """Check that users grant only rights that they have, unless they may escalate or bind."""
        binding = "roleRef" in new
        wanted = {"verb": "bind" if binding else "escalate", "group": GROUP, "namespace": call.namespace}
        if binding:
            reference = new["roleRef"]
            rules = self._rbac.rules(reference, call.namespace)
            wanted |= {"resource": "clusterroles" if reference.get("kind") == "ClusterRole" else "roles", "name": reference.get("name", "")}
            if rules is None and not self._rbac.allows(call.user, wanted)[0]:
                raise not_found(GROUP, str(wanted["resource"]), str(wanted["name"]))
            rules = rules or []
        else:
            rules = new.get("rules") or []
            wanted |= {"resource": call.kind.plural, "name": call.name}
        lacking = self._rbac.lacking(call.user, rules, call.namespace)
        if lacking and not self._rbac.allows(call.user, wanted)[0]:
            raise _forbidden(call, f'user "{call.user.name}" is attempting to grant RBAC permissions not currently held: {lacking}')
        for rule in rules:
            for right in spelled_out(rule):
                self._note(call, right, allowed=not lacking)

    def _owners(self, call: Call, new: Json, old: Json | None) -> None:
        before, after = _references(old), _references(new)
        if before == after:
            return
        itself = {"group": call.kind.group, "resource": call.kind.plural, "name": call.name}
        if old is not None and not self._may(call, itself | {"verb": "delete"}):
            raise _forbidden(call, "cannot set an ownerRef on a resource you can't delete: , <nil>")
        held_up = {reference["uid"] for reference in before if reference.get("blockOwnerDeletion")}
        for reference in after:
            if reference.get("blockOwnerDeletion") and reference["uid"] not in held_up:
                self._may_hold_up(call, reference)

    def _may_hold_up(self, call: Call, reference: Json) -> None:
        group, _, version = reference["apiVersion"].rpartition("/")
        owner = self._registry.by_kind(group, version, reference["kind"])
        if owner is None:
            named = f"APIVersion {reference['apiVersion']} Kind {reference['kind']}"
            raise _forbidden(call, f"cannot set blockOwnerDeletion in this case because cannot find RESTMapping for {named}")
        right = {"verb": "update", "group": group, "resource": owner.plural, "subresource": "finalizers", "name": reference["name"]}
        if not self._may(call, right | ({} if owner.namespaced else {"namespace": ""})):
            why = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"
            raise _forbidden(call, why)

    def _may(self, call: Call, right: Json) -> bool:
        allowed = self._rbac.allows(call.user, {"namespace": call.namespace} | right)[0]
        self._note(call, right, allowed=allowed)
        return allowed

    def _note(self, call: Call, right: Json, *, allowed: bool) -> None:
        if self._audit is not None and "path" not in right:
            self._audit.used(call.user.name, right, allowed=allowed)


def _references(obj: Json | None) -> list[Json]:
    return ((obj or {}).get("metadata") or {}).get("ownerReferences") or []


def _forbidden(call: Call, why: str) -> StatusError:
    return forbidden(call.kind.group, call.kind.plural, call.name, why)
