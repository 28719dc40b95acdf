"""Turn custom resource definitions into resource types.

Their names are accepted or refused, and accepted ones are served. When a definition is deleted, its objects go first. This module acts a
moment after a change in the store, like the controllers inside a real server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from elastic.local.apiserver.aggregation.registered import Registered
from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.objects import now_text
from elastic.local.apiserver.resources import STATUS, Registry, ResourceType, Subresource
from elastic.local.apiserver.store import Change, Entry, Store

STORAGE = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def storage_of(obj: Json) -> str:
    return f"{obj['spec']['names']['plural']}.{obj['spec']['group']}"


def established(obj: Json) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _condition(kind: str, status: bool, reason: str, message: str) -> Json:
    return {"type": kind, "status": str(status), "lastTransitionTime": now_text(), "reason": reason, "message": message}


def types_of(obj: Json) -> list[ResourceType]:
    """Return the resource types that an established definition serves."""
    spec = obj["spec"]
    names = spec["names"]
    out = []
    # With one version, every object that was written after the definition's last change has all defaults.
    complete_since = int(obj["metadata"]["resourceVersion"]) if len(spec["versions"]) == 1 else math.inf
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        kind, subs = names["kind"], []
        declared = version.get("subresources") or {}
        if "scale" in declared:
            subs.append(Subresource("scale", "Scale", STATUS, "autoscaling", "v1"))
        if "status" in declared:
            subs.append(Subresource("status", kind, STATUS))
        out.append(
            ResourceType(
                spec["group"],
                version["name"],
                names["plural"],
                kind,
                spec["scope"] == "Namespaced",
                Custom(version, complete_since=complete_since),
                names.get("singular", ""),
                tuple(names.get("shortNames") or ()),
                tuple(names.get("categories") or ()),
                subresources=tuple(subs),
                storage=storage_of(obj),
                custom=True,
                list_kind=names.get("listKind", ""),
            )
        )
    return out


class Definitions:
    """Keeps the registry in step with the definitions in the store."""

    def __init__(self, store: Store, registry: Registry, ended: Callable[[str], None], registered: Registered) -> None:
        self._store, self._registry, self._ended, self._registered = store, registry, ended, registered
        self._waiting: dict[str, Callable[[], None]] = {}

    def start(self, present: list[Entry]) -> None:
        for entry in present:
            obj = entry.load()
            if established(obj):
                self._serve(obj)
            self._soon(entry.name)
        self._store.subscribe(STORAGE, self._changed)

    def _changed(self, change: Change) -> None:
        obj = change.after.load()
        if change.gone:
            self._replace(obj, [])
            self._ended(storage_of(obj))
            return
        if established(obj):
            before = change.before.load() if change.before else None
            if before is None or before["spec"] != obj["spec"] or not established(before):
                self._serve(obj)
        self._soon(change.after.name)

    def _serve(self, obj: Json) -> None:
        self._replace(obj, types_of(obj))

    def _replace(self, obj: Json, types: list[ResourceType]) -> None:
        group = obj["spec"]["group"]
        self._registry.replace_custom(group, obj["spec"]["names"]["plural"], types)
        asyncio.get_running_loop().call_soon(lambda: self._registered.custom(group, self._registry.groups().get(group, [])))

    def _soon(self, name: str) -> None:
        asyncio.get_running_loop().call_soon(self._settle, name)

    def _settle(self, name: str) -> None:
        """Bring a definition one step closer to its wanted state. Write only if something changes."""
        entry = self._store.get(STORAGE, "", name)
        if entry is None:
            return
        obj = entry.load()
        if obj["metadata"].get("deletionTimestamp"):
            self._clean(entry, obj)
            return
        status = self._status(obj)
        if status != obj.get("status"):
            obj["status"] = status
            self._store.put(STORAGE, "", name, obj=obj, expected=entry)

    def _status(self, obj: Json) -> Json:
        names, old = obj["spec"]["names"], obj.get("status") or {}
        taken = self._taken(obj)
        accepted = {k: v for k, v in names.items() if k not in taken}
        if taken:
            field, value = next(iter(taken.items()))
            reason = {"listKind": "ListKindConflict", "kind": "KindConflict", "plural": "PluralConflict", "singular": "SingularConflict"}
            now = [
                _condition("NamesAccepted", False, reason.get(field, "ShortNamesConflict"), f'"{value}" is already in use'),
                _condition("Established", False, "NotAccepted", "not all names are accepted"),
            ]
            accepted.setdefault("kind", "")
        else:
            now = [
                _condition("NamesAccepted", True, "NoConflicts", "no conflicts found"),
                _condition("Established", True, "InitialNamesAccepted", "the initial names have been accepted"),
            ]
        old_conditions = {c["type"]: c for c in old.get("conditions") or ()}
        if old_conditions.get("Established", {}).get("status") == "True":
            now[1] = old_conditions["Established"]
        conditions = [old_conditions[c["type"]] if old_conditions.get(c["type"], {}).get("status") == c["status"] else c for c in now]
        stored = list(old.get("storedVersions") or ())
        stored += [v["name"] for v in obj["spec"]["versions"] if v.get("storage") and v["name"] not in stored]
        return {"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored}

    def _taken(self, obj: Json) -> dict[str, str]:
        """Return the names that another definition of the group has already."""
        names, group = obj["spec"]["names"], obj["spec"]["group"]
        used: set[str] = set()
        for t in self._registry:
            if t.custom and t.group == group and t.stored_in != storage_of(obj):
                used |= {t.list_of, t.kind, t.plural, t.singular, *t.short_names}
        return {k: names[k] for k in ("listKind", "kind", "plural", "singular") if names.get(k) in used}

    # ------------------------------------------------------------------ deletion
    def _clean(self, entry: Entry, obj: Json) -> None:
        """Delete the remaining objects of a definition, and the definition after the last of them."""
        storage, finalizers = storage_of(obj), obj["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        left = 0
        for held in self._store.entries(storage) if established(obj) else ():
            left += self._delete(storage, held)
        if left:
            if entry.name not in self._waiting:
                self._waiting[entry.name] = self._store.subscribe(storage, lambda change: self._soon(entry.name) if change.gone else None)
            return
        unsubscribe = self._waiting.pop(entry.name, None)
        if unsubscribe is not None:
            unsubscribe()
        rest = [f for f in finalizers if f != FINALIZER]
        if rest:
            obj["metadata"]["finalizers"] = rest
            self._store.put(STORAGE, "", entry.name, obj=obj, expected=entry)
        else:
            self._store.remove(STORAGE, "", entry.name, obj=obj, expected=entry)

    def _delete(self, storage: str, entry: Entry) -> bool:
        """Delete an object, and return whether a finalizer still holds it."""
        obj = entry.load()
        meta = obj["metadata"]
        if not meta.get("finalizers"):
            self._store.remove(storage, *entry.key, obj=obj, expected=entry)
            return False
        if "deletionTimestamp" not in meta:
            meta |= {"deletionTimestamp": now_text(), "deletionGracePeriodSeconds": 0, "generation": meta.get("generation", 0) + 1}
            self._store.put(storage, *entry.key, obj=obj, expected=entry)
        return True


def mark_for_deletion(obj: Json) -> None:
    """Add what a first DELETE adds: a condition, and the finalizer that holds the definition until its objects are gone."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    status = obj.setdefault("status", {})
    kept = [c for c in status.get("conditions") or () if c["type"] != "Terminating"]
    status["conditions"] = [*kept, _condition("Terminating", True, "InstanceDeletionPending", message)]
