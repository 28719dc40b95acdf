"""Create, get, replace, patch and delete for every kind alike: metadata, generations, versions, finalizers, grace.

The Strategy of a kind has its special rules. The Admission that is handed in has admission and other controllers' rules. Between reading an
object and writing it, the store is asked whether it is still the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol
from uuid import uuid4

from elastic.local.apiserver import managed, names
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import (
    MODIFIED,
    Json,
    StatusError,
    already_exists,
    bad,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    unnamed,
)
from elastic.local.apiserver.resources import ResourceType
from elastic.local.apiserver.store import Entry, Stale, Store, TooLarge, is_version

SYSTEM_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
Mutate = Callable[[Json], Json]


class Part(Enum):
    """The part that a write may change: all but status, only status, or everything (rules of the server itself, such as binding)."""

    MAIN = "main"
    STATUS = "status"
    WHOLE = "whole"


class Admission(Protocol):
    async def admit(self, call: Call, new: Json | None, old: Json | None, /) -> None:
        """Before validation; may change `new`, raises StatusError to refuse."""

    async def review(self, call: Call, new: Json | None, old: Json | None, /) -> None:
        """Review an object after its validation. Raise StatusError to refuse it."""


def now_text(at: datetime | None = None) -> str:
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def whole(kind: ResourceType, entry: Entry) -> Json:
    """Return an object as the kind's version shows it, with apiVersion and kind."""
    return kind.strategy.from_storage({"kind": kind.kind, "apiVersion": kind.api_version, **entry.load()})


class Objects:
    def __init__(self, store: Store, admission: Admission) -> None:
        self._store, self._admission = store, admission

    def find(self, call: Call) -> Entry:
        entry = self._store.get(call.kind.stored_in, call.namespace, call.name)
        if entry is None:
            raise not_found(call.kind.group, call.kind.plural, call.name)
        return entry

    async def review(self, call: Call, new: Json) -> None:
        """Asks admission about an object that is carried out and not stored, as an eviction is."""
        await self._admission.review(call, new, None)

    # ------------------------------------------------------------------ create
    async def create(self, call: Call, obj: Json) -> Json:
        """Store a new object; `obj` is decoded and has no defaults yet."""
        kind, strategy = call.kind, call.kind.strategy
        meta = obj["metadata"]
        if kind.refusal:
            raise forbidden(kind.group, kind.plural, meta.get("name") or meta.get("generateName") or "", kind.refusal)
        self._place(call, meta)
        if meta.pop("resourceVersion", "") not in ("", "0"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        for key in SYSTEM_FIELDS:
            meta.pop(key, None)
        if not call.applying:
            meta.pop("managedFields", None)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][: 63 - 5] + _suffix()
        call.name = meta.get("name", "")
        meta["uid"] = str(uuid4())
        meta["creationTimestamp"] = now_text()
        strategy.default(obj)
        strategy.prepare_create(obj)
        if strategy.generation:
            meta["generation"] = 1
        managed.on_write(call, obj, None)
        await self._admission.admit(call, obj, None)
        meta = obj["metadata"]
        causes = names.identity_causes(meta)
        if not causes:
            if meta.get("generateName"):
                causes += strategy.name_causes(meta["generateName"].rstrip("-.") or "a", "metadata.generateName")
            causes += strategy.name_causes(meta["name"], "metadata.name") + names.metadata_causes(meta)
        causes += strategy.validate(obj)
        if causes:
            raise invalid(kind.group, kind.kind, meta.get("name", ""), causes)
        await self._admission.review(call, obj, None)
        existing = self._store.get(kind.stored_in, call.namespace, meta["name"])
        if existing is not None:
            dying = bool(existing.load()["metadata"].get("deletionTimestamp"))
            raise already_exists(kind.group, kind.plural, meta["name"], being_deleted=dying)
        if call.dry_run:
            return obj
        try:
            self._put(call, obj, None)
        except Stale:
            raise already_exists(kind.group, kind.plural, call.name) from None
        return obj

    def _place(self, call: Call, meta: Json) -> None:
        if not call.kind.namespaced:
            if meta.pop("namespace", ""):
                raise bad_request("namespace is not allowed on this type")
            return
        given = meta.get("namespace") or call.namespace
        if given != call.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        meta["namespace"] = call.namespace

    # ------------------------------------------------------------------ update
    async def update(self, call: Call, mutate: Mutate, part: Part = Part.MAIN) -> Json:
        """Read, change and write an object. Repeat that if another writer came between."""
        for _ in range(5):
            entry = self.find(call)
            try:
                return await self._update_once(call, entry, mutate, part)
            except Stale:
                continue
        raise conflict(call.kind.group, call.kind.plural, call.name, MODIFIED)

    async def _update_once(self, call: Call, entry: Entry, mutate: Mutate, part: Part) -> Json:
        kind, strategy = call.kind, call.kind.strategy
        old = whole(kind, entry)
        new = mutate(whole(kind, entry))
        self._check_identity(call, new, old)
        new = _prepared(kind, new, old, part)
        managed.on_write(call, new, old)
        await self._admission.admit(call, new, old)
        causes = names.metadata_causes(new["metadata"]) + names.update_causes(new["metadata"], old["metadata"])
        if part is Part.STATUS:
            causes += strategy.validate_status(new, old)
        elif part is Part.MAIN:
            causes += strategy.validate_update(new, old)
        if causes:
            raise invalid(kind.group, kind.kind, call.name, causes)
        await self._admission.review(call, new, old)
        if managed.same(new, old):
            return old
        if call.dry_run:
            return new
        if _released(kind, new):
            last = dict(old, metadata=dict(old["metadata"]))  # watchers get the state that was stored
            self._remove(call, last, entry)
            new["metadata"]["resourceVersion"] = last["metadata"]["resourceVersion"]
        else:
            self._put(call, new, entry)
        return new

    def _check_identity(self, call: Call, new: Json, old: Json) -> None:
        kind, meta = call.kind, new["metadata"]
        if call.verb == "patch" and not meta.get("name"):
            raise unnamed(call.name)
        meta.setdefault("name", call.name)
        if call.namespace:
            given = meta.setdefault("namespace", call.namespace)
            if given != call.namespace:
                raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if meta["name"] != call.name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({call.name})")
        version = meta.get("resourceVersion") or ""
        if version and not is_version(version):
            raise StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if not version and call.verb == "update" and kind.strategy.needs_version:
            cause = bad("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(kind.group, kind.plural, call.name, [cause])
        if version and version != old["metadata"]["resourceVersion"]:
            raise conflict(kind.group, kind.plural, call.name, MODIFIED)
        uid = meta.get("uid")
        if uid and uid != old["metadata"]["uid"]:
            if call.verb == "patch":
                raise invalid(kind.group, kind.kind, call.name, [bad("metadata.uid", uid, names.IMMUTABLE)])
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            raise conflict(kind.group, kind.plural, call.name, why)

    async def finalize(self, call: Call, mutate: Mutate) -> Json:
        """Write spec.finalizers of a namespace. If none remains and the namespace is being deleted, it is removed."""
        entry = self.find(call)
        obj = mutate(whole(call.kind, entry))
        meta = obj["metadata"]
        if meta.get("deletionTimestamp") and not obj["spec"]["finalizers"] and not meta.get("finalizers"):
            self._remove(call, obj, entry)
        else:
            self._put(call, obj, entry)
        return obj

    # ------------------------------------------------------------------ delete
    async def delete(self, call: Call, options: Json) -> tuple[Json, bool]:
        """Mark or remove an object. Return its last state and whether it is gone."""
        for _ in range(5):
            entry = self.find(call)
            try:
                return await self._delete_once(call, entry, options)
            except Stale:
                continue
        raise conflict(call.kind.group, call.kind.plural, call.name, MODIFIED)

    async def _delete_once(self, call: Call, entry: Entry, options: Json) -> tuple[Json, bool]:
        kind = call.kind
        obj = whole(kind, entry)
        _check_preconditions(call, obj, options)
        await self._admission.admit(call, None, obj)
        await self._admission.review(call, None, obj)
        before = dict(obj["metadata"])
        grace = _mark(kind, obj, options)
        meta = obj["metadata"]
        if not meta.get("finalizers") and grace == 0 and not kind.strategy.held(obj):
            if not kind.strategy.graceful and "deletionTimestamp" not in before:
                for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
                    meta.pop(key, None)
                    meta |= {key: before[key]} if key in before else {}
            if not call.dry_run:
                self._remove(call, obj, entry)
            return obj, True
        if meta != before and not call.dry_run:
            self._put(call, obj, entry)
        return obj, False

    # ------------------------------------------------------------------ store
    def _put(self, call: Call, obj: Json, expected: Entry | None) -> None:
        stored = call.kind.strategy.to_storage(obj)
        try:
            self._store.put(call.kind.stored_in, call.namespace, obj["metadata"]["name"], obj=stored, expected=expected)
        except TooLarge as e:
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {e}") from None
        obj["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]

    def _remove(self, call: Call, obj: Json, expected: Entry) -> None:
        stored = call.kind.strategy.to_storage(obj)
        self._store.remove(call.kind.stored_in, call.namespace, obj["metadata"]["name"], obj=stored, expected=expected)
        obj["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]


def _prepared(kind: ResourceType, new: Json, old: Json, part: Part) -> Json:
    """Return the new state with the system's own fields and defaults. Only the part that the endpoint writes has changed."""
    strategy, meta, before = kind.strategy, new["metadata"], old["metadata"]
    for key in SYSTEM_FIELDS:
        meta.pop(key, None)
        if key in before:
            meta[key] = before[key]
    meta["resourceVersion"] = before["resourceVersion"]
    strategy.default(new)
    if part is Part.STATUS:
        return strategy.prepare_status(new, old)
    if part is Part.MAIN:
        strategy.prepare_update(new, old)
    if strategy.generation and _spec(new) != _spec(old):
        meta["generation"] = before.get("generation", 0) + 1
    return new


def _mark(kind: ResourceType, obj: Json, options: Json) -> int:
    """Mark an object for deletion, or shorten the grace of a marked object. Return the grace that is left, in seconds."""
    meta, asked = obj["metadata"], options.get("gracePeriodSeconds")
    grace = kind.strategy.grace(obj, asked)
    finalizers = _deletion_finalizers(meta.pop("finalizers", []), options)
    if finalizers:
        meta["finalizers"] = finalizers
    if "deletionTimestamp" in meta:
        left = int(meta.get("deletionGracePeriodSeconds", 0))
        if asked is None or grace >= left:
            return left
        began = datetime.fromisoformat(meta["deletionTimestamp"]).timestamp() - left
        meta["deletionTimestamp"] = now_text(datetime.fromtimestamp(max(began + grace, 0), UTC))
        meta["deletionGracePeriodSeconds"] = grace
        return grace
    kind.strategy.prepare_delete(obj)
    meta["deletionTimestamp"] = now_text(datetime.fromtimestamp(datetime.now(UTC).timestamp() + grace, UTC))
    if not kind.strategy.held(obj):
        meta["deletionGracePeriodSeconds"] = grace
    if meta.get("generation"):
        meta["generation"] += 1
    return grace


def _released(kind: ResourceType, obj: Json) -> bool:
    """Return whether an object is marked for deletion and has nothing left to wait for."""
    meta = obj["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or kind.strategy.held(obj)
    return bool(meta.get("deletionTimestamp")) and not waits


def _suffix() -> str:
    return "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))


def _spec(obj: Json) -> Json:
    return {k: v for k, v in obj.items() if k not in ("metadata", "status", "apiVersion", "kind")}


def _check_preconditions(call: Call, obj: Json, options: Json) -> None:
    wanted, meta, kind = options.get("preconditions") or {}, obj["metadata"], call.kind
    for key, label, guess in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        if wanted.get(key) and wanted[key] != meta[key]:
            differs = f"the {label} in the precondition ({wanted[key]}) does not match the {label} in record ({meta[key]})"
            why = f"{differs}. The object might have been {guess}"
            raise conflict(kind.group, kind.kind, call.name, why)


def _deletion_finalizers(present: list[str], options: Json) -> list[str]:
    """Return the finalizers that the propagation policy asks for. The garbage collector takes them away again."""
    policy = options.get("propagationPolicy")
    if policy is None and options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    if policy is None:
        return present
    kept = [f for f in present if f not in ("orphan", "foregroundDeletion")]
    return kept + {"Orphan": ["orphan"], "Foreground": ["foregroundDeletion"]}.get(policy, [])
