"""Record who wrote each field last: keep metadata.managedFields on every write, and do server-side apply.

A manager is a name, an operation and, for plain writes, a version. Applying merges a configuration into the live object. It removes fields
that the manager applied before and does not apply any more. It refuses to change fields of other managers, unless it is forced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from elastic.local.apiserver import fieldsets
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.errors import Json, StatusError, bad_request
from elastic.local.apiserver.fieldsets import Path, Shape
from elastic.local.apiserver.resources import ResourceType

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
UPDATE, APPLY = "Update", "Apply"
_SYSTEM = {
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(
        (("f:metadata", f"f:{k}"))
        for k in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        )
    ),
}
_MAX_UPDATERS = 10


@dataclass(frozen=True, slots=True)
class Manager:
    name: str
    operation: str
    version: str
    subresource: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return self.name, self.operation, "" if self.operation == APPLY else self.version, self.subresource


@dataclass(frozen=True, slots=True)
class Owned:
    """The fields of a manager, in the form fieldsV1. They become a set only if they change, because managers may own many fields."""

    manager: Manager
    time: str
    tree: Json

    @property
    def fields(self) -> set[Path]:
        return fieldsets.decode(self.tree)

    def without(self, gone: Json) -> Owned:
        """Return the fields that remain without those of this tree."""
        lost = set(fieldsets.in_both(self.tree, gone))
        return replace(self, tree=fieldsets.encode(self.fields - lost)) if lost else self


def shape_of(kind: ResourceType) -> Shape:
    if isinstance(kind.strategy, Custom):
        return kind.strategy.shape_tree()
    return fieldsets.built_in(kind.schema_name)


def read(obj: Json | None) -> list[Owned]:
    out = []
    for e in ((obj or {}).get("metadata") or {}).get("managedFields") or ():
        if not e.get("manager") and not e.get("fieldsV1"):
            continue
        manager = Manager(e.get("manager", ""), e.get("operation", UPDATE), e.get("apiVersion", ""), e.get("subresource", ""))
        out.append(Owned(manager, e.get("time", ""), e.get("fieldsV1") or {}))
    return out


def _as_sent(new: Json, old: Json) -> list[Owned]:
    """Return the owners that a client sent, in the form in which we write them."""
    if new["metadata"]["managedFields"] == old["metadata"].get("managedFields"):
        return read(old)
    return [replace(o, tree=fieldsets.encode(o.fields)) for o in read(new)]


def write(obj: Json, owners: list[Owned]) -> None:
    # A real server sorts by time before names. We do not, because the order would depend on the moment at which a second ends.
    owners = sorted(owners, key=lambda o: (o.manager.operation, o.manager.name, o.manager.version, o.manager.subresource))
    entries = [_entry(o) for o in owners if o.tree]
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def _entry(o: Owned) -> Json:
    entry: Json = {"manager": o.manager.name, "operation": o.manager.operation, "apiVersion": o.manager.version}
    if o.time:
        entry["time"] = o.time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": o.tree}
    if o.manager.subresource:
        entry["subresource"] = o.manager.subresource
    return entry


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _plain(fields: set[Path], kind: ResourceType, *, status: bool) -> set[Path]:
    """Return the fields without those of the system, and without the part that this endpoint does not write."""
    fields = fields - _SYSTEM
    if status:
        return {p for p in fields if p[0] in ("f:status", "f:metadata")}
    return {p for p in fields if p[0] != "f:status"} if kind.strategy.has_status else fields


def on_write(call: Call, new: Json, old: Json | None) -> None:
    """Give the fields that a plain write changed to its manager, and take them from the others."""
    if call.applying:
        return
    kind = call.kind
    owners = _as_sent(new, old) if old is not None and new["metadata"].get("managedFields") else read(old)
    shape = shape_of(kind)
    before = _unmanaged(old) if old is not None else shape.empty() if not kind.custom else {}
    change = fieldsets.compare(shape, before, _unmanaged(new))
    status = call.subresource == "status"
    mine = _plain(change.added | change.modified, kind, status=status)
    manager = Manager(call.manager, UPDATE, kind.api_version, call.subresource if call.subresource in ("status", "scale") else "")
    touched = fieldsets.encode(change.added | change.modified | change.removed)
    left = [o.without(touched) if o.manager.identity != manager.identity else o for o in owners]
    if mine or change.removed:
        own = next((o for o in left if o.manager.identity == manager.identity), Owned(manager, "", {}))
        left = [o for o in left if o is not own]
        fields = (own.fields - change.removed) | mine
        left.append(Owned(manager, _now() if mine or not own.time else own.time, fieldsets.encode(fields)))
    write(new, _capped(left))


def _capped(owners: list[Owned]) -> list[Owned]:
    """Join the oldest of many plain writers, so that the list stays short."""
    updaters = sorted((o for o in owners if o.manager.operation == UPDATE and o.tree), key=lambda o: o.time)
    if len(updaters) <= _MAX_UPDATERS:
        return owners
    old = updaters[: len(updaters) - _MAX_UPDATERS + 1]
    fields = fieldsets.encode(set[Path]().union(*(o.fields for o in old)))
    ancient = Owned(Manager("ancient-changes", UPDATE, old[-1].manager.version), old[-1].time, fields)
    return [o for o in owners if o not in old] + [ancient]


def _unmanaged(obj: Json) -> Json:
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}


def same(new: Json, old: Json) -> bool:
    """Return whether a write changes nothing, or only times in managedFields."""
    if new == old:
        return True
    if _unmanaged(new) != _unmanaged(old):
        return False
    return _timeless(new) == _timeless(old)


def _timeless(obj: Json) -> list[Json]:
    return [{k: v for k, v in e.items() if k != "time"} for e in obj["metadata"].get("managedFields") or ()]


# ---------------------------------------------------------------------- apply
def apply(call: Call, live: Json | None, config: Json) -> Json:
    """Apply a configuration to the live object, and return the result with its owners."""
    kind, shape = call.kind, shape_of(call.kind)
    missing = fieldsets.undeclared(shape, config)
    if missing and not kind.custom:
        name = config["metadata"].get("name", "")
        where = f"{config['metadata'].get('namespace', '')}/{name}; {kind.api_version}, Kind={kind.kind}"
        raise StatusError(500, "", f"failed to create typed patch object ({where}): {missing}: field not declared in schema")
    status = call.subresource == "status"
    owners = read(live)
    manager = Manager(call.manager, APPLY, kind.api_version, call.subresource)
    last = next((o for o in owners if o.manager.identity == manager.identity), None)
    mine = _plain(fieldsets.of(shape, _settable(config)), kind, status=status)
    tree = fieldsets.encode(mine)
    base: Json = _unmanaged(live) if live is not None else {"metadata": {}}
    new: Json = fieldsets.merge(shape, base, _settable(config))
    others = [o for o in owners if o.manager.identity != manager.identity]
    if last is not None:
        new = fieldsets.remove(shape, new, _abandoned(last.fields - mine, tree, others))
    change = fieldsets.compare(shape, base, new)
    changed = fieldsets.encode(change.added | change.modified)
    conflicts = [(o.manager, paths) for o in others if (paths := sorted(fieldsets.in_both(o.tree, changed)))]
    if conflicts and not call.force:
        raise _conflict(conflicts)
    touched = fieldsets.encode(change.added | change.modified | change.removed)
    left = [o.without(touched) for o in others]
    same_as_before = last is not None and last.tree == tree and not touched
    time = last.time if same_as_before and last is not None else _now()
    new = {**new, "metadata": dict(new["metadata"])}
    _note_last_applied(call, new, config)
    write(new, [*left, Owned(manager, time, tree)])
    return new


def _note_last_applied(call: Call, new: Json, config: Json) -> None:
    """Keep the annotation of client-side apply up to date while kubectl applies on the server."""
    annotations = new["metadata"].get("annotations") or {}
    if call.manager == "kubectl" and not call.subresource and LAST_APPLIED in annotations:
        text = orjson.dumps(config, option=orjson.OPT_SORT_KEYS).decode() + "\n"
        new["metadata"]["annotations"] = {**annotations, LAST_APPLIED: text}


def _settable(config: Json) -> Json:
    """Return the part of a configuration that is merged. Identity and version are checked elsewhere."""
    meta = {
        k: v
        for k, v in config["metadata"].items()
        if k not in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields")
    }
    return {**config, "metadata": meta}


def _abandoned(dropped: set[Path], mine: Json, others: list[Owned]) -> list[Path]:
    """Return the fields that this manager does not apply any more and that no other manager owns."""
    trees = [mine, *(o.tree for o in others)]
    return [p for p in dropped if not any(fieldsets.leads_to(tree, p) for tree in trees)]


def _conflict(conflicts: list[tuple[Manager, list[Path]]]) -> StatusError:
    causes, groups, total = [], [], 0
    for manager, paths in sorted(conflicts, key=lambda c: c[0].name):
        who = f'"{manager.name}"'
        if manager.subresource:
            who += f' with subresource "{manager.subresource}"'
        if manager.operation == UPDATE:
            who += f" using {manager.version}"
        causes += [{"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": fieldsets.shown(p)} for p in paths]
        groups.append((who, paths))
        total += len(paths)
    if total == 1:
        who, paths = groups[0]
        text = f"Apply failed with 1 conflict: conflict with {who}: {fieldsets.shown(paths[0])}"
    else:
        parts = [f"conflicts with {who}:" + "".join(f"\n- {fieldsets.shown(p)}" for p in paths) for who, paths in groups]
        text = f"Apply failed with {total} conflicts: " + "\n".join(parts)
    return StatusError(409, "Conflict", text, details={"causes": causes})


def check_config(call: Call, config: Any) -> Json:
    """Check that an apply configuration names its apiVersion and kind, and no owners."""
    if not isinstance(config, dict):
        raise bad_request("error decoding patch: the configuration must be an object")
    kind = call.kind
    if not config.get("kind") or not config.get("apiVersion"):
        raise bad_request(f"invalid object type: {config.get('apiVersion') or '/'}, Kind={config.get('kind', '')}")
    if (config["apiVersion"], config["kind"]) != (kind.api_version, kind.kind):
        raise bad_request(f"invalid object type: {config['apiVersion']}, Kind={config['kind']}")
    meta = config.get("metadata") or {}
    if not isinstance(meta, dict):
        raise bad_request("metadata must be an object")
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    given = meta.get("name")
    if given and given != call.name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({call.name})")
    config["metadata"] = {**meta, "name": call.name}
    return config
