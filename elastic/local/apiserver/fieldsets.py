"""Make sets of an object's fields, as metadata.managedFields names them, by walking over objects with their schema.

A path is a tuple of steps: `f:name` for a field or key, `k:{...}` for an item of a list by its keys, `v:...` for an item of a set.
Pure: managed.py decides who owns which set, and the consequences.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import orjson

from elastic.local.apiserver import schemas
from elastic.local.apiserver.errors import Json

Path = tuple[str, ...]
Fields = frozenset[Path]


class Shape:
    """The schema's statement about a place in an object: it is a single value, a map with separate entries, a list by keys, or a set."""

    __slots__ = ("_children", "_item", "_schema", "atomic", "declared", "keys", "known", "set")

    def __init__(self, schema: Json) -> None:
        self._schema = resolved = schemas.resolved(schema)
        self._children: dict[str, Shape] = {}
        self._item: Shape | None = None
        kind = resolved.get("x-kubernetes-list-type")
        self.keys: tuple[str, ...] = tuple(resolved.get("x-kubernetes-list-map-keys") or ()) if kind == "map" else ()
        self.set = kind == "set"
        self.atomic = resolved.get("x-kubernetes-map-type") == "atomic" or schemas.reference(schema).endswith("FieldsV1")
        self.declared = frozenset(resolved.get("properties") or ())
        extra = resolved.get("additionalProperties")
        free = resolved.get("x-kubernetes-preserve-unknown-fields") or resolved.get("x-kubernetes-embedded-resource")
        self.known = not (extra or free or (not self.declared and resolved.get("type") in (None, "object")))
        """Whether undeclared fields are invalid here."""

    def child(self, name: str) -> Shape:
        found = self._children.get(name)
        if found is None:
            extra = self._schema.get("additionalProperties")
            schema = self._schema.get("properties", {}).get(name) or (extra if isinstance(extra, dict) else {})
            found = self._children[name] = Shape(schema)
        return found

    @property
    def item(self) -> Shape:
        if self._item is None:
            self._item = Shape(self._schema.get("items") or {})
        return self._item

    def granular(self, value: Any) -> bool:
        """Return whether the parts of a value have separate owners."""
        if isinstance(value, dict):
            return not self.atomic
        return isinstance(value, list) and (self.set or bool(self.keys))

    def step(self, item: Any) -> str | None:
        """Return the name of a list item, or None if it lacks all keys."""
        if self.set:
            return "v:" + orjson.dumps(item).decode()
        if not isinstance(item, dict):
            return None
        named = {}
        for key in self.keys:
            value = item.get(key)
            if value is None:
                value = self.item._schema.get("properties", {}).get(key, {}).get("default")
            if value is not None:
                named[key] = value
        return "k:" + orjson.dumps(named, option=orjson.OPT_SORT_KEYS).decode() if named else None

    def empty(self) -> Json:
        """Return a new object of this type, before anything is written into it."""
        return {k: Shape(s).empty() for k, s in self._schema.get("properties", {}).items() if s.get("default") == {} and k != "resources"}


@cache
def built_in(schema_name: str) -> Shape:
    return Shape(schemas.component(schema_name))


def entries(shape: Shape, value: Any) -> Iterator[tuple[str, Any, Shape]]:
    """Yield the parts of a granular value: step, value, shape."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item is not None:
                yield "f:" + key, item, shape.child(key)
    else:
        for item in value:
            step = shape.step(item)
            if step is not None:
                yield step, item, shape.item


def of(shape: Shape, value: Any, path: Path = ()) -> set[Path]:
    """Return all fields that a configuration sets: its leaves, items of lists, and entries of maps."""
    out: set[Path] = set()
    for step, item, inner in entries(shape, value):
        here = (*path, step)
        if inner.granular(item) and item:
            out |= of(inner, item, here)
            if not step.startswith("f:") or (isinstance(value, dict) and step[2:] not in shape.declared):
                out.add(here)
        else:
            out.add(here)
    return out


@dataclass(slots=True)
class Difference:
    added: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)


def compare(shape: Shape, old: Any, new: Any, path: Path = (), into: Difference | None = None) -> Difference:
    """Find the fields that a change adds, modifies and removes."""
    out = into if into is not None else Difference()
    if old == new:
        return out
    before = {s: (v, i) for s, v, i in entries(shape, old)} if old is not None else {}
    after = {s: (v, i) for s, v, i in entries(shape, new)} if new is not None else {}
    for step, (value, inner) in after.items():
        here = (*path, step)
        was = before.get(step, (None, inner))[0]
        if was is None:
            out.added.add(here)
            if inner.granular(value):
                compare(inner, None, value, here, out)
        elif was != value:
            if inner.granular(value) and inner.granular(was) and type(value) is type(was):
                compare(inner, was, value, here, out)
            else:
                out.modified.add(here)
    for step, (was, inner) in before.items():
        if step not in after:
            here = (*path, step)
            out.removed.add(here)
            if inner.granular(was):
                compare(inner, was, None, here, out)
    return out


def merge(shape: Shape, live: Any, config: Any) -> Any:
    """Return the live value with everything that the configuration sets."""
    if not (shape.granular(live) and shape.granular(config) and type(live) is type(config)):
        return config
    if isinstance(config, dict):
        out = dict(live)
        for key, value in config.items():
            if value is not None:
                out[key] = merge(shape.child(key), live[key], value) if live.get(key) is not None else value
        return out
    return _merge_lists(shape, live, config)


def _merge_lists(shape: Shape, live: list[Any], config: list[Any]) -> list[Any]:
    wanted = [(shape.step(c), c) for c in config]
    ahead = Counter(s for s, _ in wanted)
    named = set(ahead)
    present = {shape.step(i): i for i in live}
    out: list[Any] = []
    queue = deque(wanted)

    def emit_until(step: str | None) -> None:
        while queue:
            s, c = queue.popleft()
            ahead[s] -= 1
            out.append(merge(shape.item, present[s], c) if s in present else c)
            if s == step:
                return

    for item in live:
        step = shape.step(item)
        if step not in named:
            out.append(item)
        elif ahead[step]:
            emit_until(step)
    emit_until(None)
    return out


def remove(shape: Shape, value: Any, gone: Iterable[Path]) -> Any:
    """Return the value without these fields. Maps and lists that become empty are removed too."""
    tree: dict[str, Any] = {}
    for path in gone:
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        node[""] = True
    return _remove(shape, value, tree)


def _remove(shape: Shape, value: Any, tree: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        out: Any = {}
        for key, item in value.items():
            sub = tree.get("f:" + key)
            if sub is None:
                out[key] = item
            elif "" not in sub:
                left = _remove(shape.child(key), item, sub)
                if left not in ({}, []):
                    out[key] = left
        return out
    if not isinstance(value, list):
        return value
    kept = []
    for item in value:
        sub = tree.get(shape.step(item) or "")
        if sub is None:
            kept.append(item)
        elif "" not in sub:
            kept.append(_remove(shape.item, item, sub))
    return kept


def undeclared(shape: Shape, value: Any, path: str = "") -> str | None:
    """Return the first field of a configuration that the schema does not have, or None."""
    if isinstance(value, dict) and not shape.atomic:
        for key, item in value.items():
            if shape.known and shape.declared and key not in shape.declared:
                return f"{path}.{key}"
            found = undeclared(shape.child(key), item, f"{path}.{key}")
            if found:
                return found
    elif isinstance(value, list):
        for item in value:
            found = undeclared(shape.item, item, f"{path}{shown_step(shape.step(item) or '')}")
            if found:
                return found
    return None


def encode(fields: Iterable[Path]) -> Json:
    """Return the fields in the form fieldsV1."""
    tree: Json = {}
    for path in sorted(fields):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        node["."] = {}
    _trim(tree)
    return tree


def _trim(node: Json) -> None:
    """Replace each field without parts by an empty object, in place."""
    for step, child in node.items():
        if step == ".":
            continue
        if set(child) == {"."}:
            child.clear()
        else:
            _trim(child)


def decode(tree: Json, path: Path = ()) -> set[Path]:
    out: set[Path] = set()
    for step, child in tree.items():
        if step == ".":
            out.add(path)
            continue
        here = (*path, step)
        out |= decode(child, here) if child else {here}
    return out


def in_both(tree: Json, other: Json, path: Path = ()) -> Iterator[Path]:
    """Yield the fields that are in both sets, which have the form fieldsV1. The work is bounded by the parts that both have."""
    for step in tree.keys() & other.keys() - {"."}:
        one, two, here = tree[step], other[step], (*path, step)
        if _is_field(one) and _is_field(two):
            yield here
        if one and two:
            yield from in_both(one, two, here)


def _is_field(node: Json) -> bool:
    return not node or "." in node


def leads_to(tree: Json, path: Path) -> bool:
    """Return whether a set in the form fieldsV1 has this field or a field below it."""
    node = tree
    for step in path:
        if step not in node:
            return False
        node = node[step]
    return True


def shown_step(step: str) -> str:
    if step.startswith("f:"):
        return "." + step[2:]
    if step.startswith("k:"):
        return "[" + ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in orjson.loads(step[2:]).items()) + "]"
    return f"[={step[2:]}]" if step else ""


def shown(path: Path) -> str:
    return "".join(shown_step(s) for s in path)
