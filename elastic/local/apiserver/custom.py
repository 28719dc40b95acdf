"""Serve custom resources: the strategy for the objects of a definition's version."""

from __future__ import annotations

import math
import re
from typing import Any

import orjson

from elastic.local.apiserver import fieldsets, rules, schemas, structural, typed
from elastic.local.apiserver.errors import Cause, Json, bad_request
from elastic.local.apiserver.resources import Strategy
from elastic.local.apiserver.tables import age, column

_IMPLIED = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


_STEP = re.compile(
    r"""\.?((?:[\w-]|\\.)+)|\[(-?\d+|\*)\]|\[(-?\d*):(-?\d*)\]|\[\?\(@\.([\w.]+)\s*==\s*["']([^"']*)["']\)\]|\[["']([^"']+)["']\]"""
)


def path_value(obj: Any, path: str) -> Any:
    """Return the value at a simple JSON path such as .spec.replicas, .status.conditions[-1:].type or [?(@.type=="Ready")].status."""
    current = [obj]
    for name, index, first, last, key, wanted, quoted in _STEP.findall(path):
        name = name.replace("\\.", ".") or quoted
        following: list[Any] = []
        for c in current:
            if name:
                following += [c[name]] if isinstance(c, dict) and name in c else []
            elif not isinstance(c, list):
                continue
            elif index:
                following += c if index == "*" else c[int(index) :][:1]
            elif key:
                following += [x for x in c if isinstance(x, dict) and str(path_value(x, key)) == wanted]
            else:
                following += c[int(first) if first else None : int(last) if last else None]
        current = following
    return current[0] if current else None


_STOPS_RULES = (
    "FieldValueNotSupported",
    "FieldValueTypeInvalid",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueRequired",
    "FieldValueDuplicate",
)


class Custom(Strategy):
    generation = True
    needs_version = True
    typed = False

    def __init__(self, version: Json, *, complete_since: float = math.inf) -> None:
        self.version = version
        self.subresources = version.get("subresources") or {}
        self.has_status = "status" in self.subresources
        self.declared: Json = (version.get("schema") or {}).get("openAPIV3Schema") or {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
        self.schema: Json = {**self.declared, "properties": {**self.declared.get("properties", {}), **_IMPLIED}}
        self._storage = bool(version.get("storage"))
        self._has_rules = rules.declared(self.declared)
        self._complete_since = complete_since
        self._has_defaults = structural.has_defaults(self.declared)
        self._check: Any = None
        self._tree: fieldsets.Shape | None = None
        self._selectable = tuple(f["jsonPath"].removeprefix(".") for f in version.get("selectableFields") or ())

    def shape_tree(self) -> fieldsets.Shape:
        """Return the schema in the form that managed fields need."""
        if self._tree is None:
            meta = {"$ref": schemas.PREFIX + schemas.OBJECT_META}
            self._tree = fieldsets.Shape({**self.schema, "properties": {**self.schema["properties"], "metadata": meta}})
        return self._tree

    def shape(self, obj: Json, kind: str, unknown: list[str]) -> Json:
        """Return the object with metadata in the form of its type, without unknown fields, which are added to `unknown`."""
        pruned: Json = structural.prune(obj, self.schema, "", unknown)
        decoder = typed.Decoder("ObjectMeta")
        try:
            pruned["metadata"] = decoder.decode(pruned.get("metadata") or {}, schemas.component(schemas.OBJECT_META), "metadata")
        except typed.WrongType as e:
            raise bad_request(f"{kind} in version {self.version['name']!r} cannot be handled as a {kind}: {e}".replace("'", '"')) from None
        unknown += decoder.unknown
        return pruned

    def default(self, obj: Json, /) -> None:
        structural.default(obj, self.schema)

    def validate(self, obj: Json, /) -> list[Cause]:
        return self._causes(obj, None)

    def validate_update(self, new: Json, old: Json, /) -> list[Cause]:
        return self._causes(new, old)

    def validate_status(self, new: Json, old: Json, /) -> list[Cause]:
        return self._causes(new, old)

    def _causes(self, new: Json, old: Json | None) -> list[Cause]:
        if self._check is None:
            self._check = structural.validator(self.schema)
        out = structural.causes(self._check, new) + structural.list_causes(new, self.schema, "")
        if not self._has_rules:
            return out
        if any(c.reason in _STOPS_RULES for c in out):
            return [*out, rules.UNCHECKED]
        return out + rules.check(self.schema, new, old)

    def prepare_status(self, new: Json, old: Json, /) -> Json:
        out = {k: v for k, v in old.items() if k != "status"}
        out["metadata"] = dict(old["metadata"])
        if "managedFields" in new["metadata"]:
            out["metadata"]["managedFields"] = new["metadata"]["managedFields"]
        if "status" in new:
            out["status"] = new["status"]
        return out

    def same_form(self, revision: int, /) -> bool:
        """Return whether an object has all defaults. One older than its definition, or written in another version, may lack some."""
        return self._storage and (not self._has_defaults or revision > self._complete_since)

    def from_storage(self, obj: Json, /) -> Json:
        shown: Json = obj if self._storage else structural.prune(obj, self.schema, "", [])
        self.default(shown)
        return shown

    def deprecation(self, plural: str, version: str) -> str:
        """Return the warning for every use of a deprecated version; empty for others."""
        if not self.version.get("deprecated"):
            return ""
        return str(self.version.get("deprecationWarning") or f"{version} {plural} is deprecated")

    def columns(self) -> list[Json]:
        out = [column("Name", format="name")]
        for c in self._columns():
            text = c.get("description") or f"Custom resource definition column (in JSONPath format): {c['jsonPath']}"
            out.append(column(c["name"], c["type"], format=c.get("format", ""), description=text, priority=c.get("priority", 0)))
        return out

    def cells(self, obj: Json, /) -> list[Any]:
        return [obj["metadata"]["name"], *(_cell(path_value(obj, c["jsonPath"]), c["type"]) for c in self._columns())]

    def _columns(self) -> list[Json]:
        return self.version.get("additionalPrinterColumns") or [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]

    def fields(self, obj: Json, /) -> dict[str, str]:
        return {p: _text(path_value(obj, p)) for p in self._selectable}

    def selectable(self) -> tuple[str, ...]:
        return self._selectable


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "date":
        return age(value) if isinstance(value, str) else "<invalid>"
    if kind == "string":
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    wanted: dict[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "boolean": (bool,)}
    return value if isinstance(value, wanted[kind]) and (kind == "boolean" or not isinstance(value, bool)) else None
