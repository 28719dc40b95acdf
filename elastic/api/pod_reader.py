"""Check a raw pod template or metric against the schema of Kubernetes, and note each mistake. The object stays raw.

As in elastic.api.reader, a fast check decides whether the slow and exact one is needed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from elastic.api.errors import Path, shown
from elastic.api.pod_schema import LEAST_INT, MOST_INT, Node, definitions, fast_type, resolved
from elastic.api.reader import Findings, no_string, one_of

_KEY_DEFAULTS = {"protocol": "TCP"}


def check_schema(value: Any, name: str, *, at: Path, findings: Findings) -> None:
    """Note the places at which a value is no well-formed object of that definition."""
    try:
        msgspec.convert(value, fast_type(name))
    except (msgspec.ValidationError, OverflowError):
        _walk(value, {"$ref": name}, at, findings)
    _check_list_keys(value, _keyed(name), at, findings)


def _walk(value: Any, node: Node, at: Path, findings: Findings) -> None:
    node = resolved(node)
    if "x-kubernetes-int-or-string" in node:
        _walk_int_or_string(value, node, at, findings)
    elif node["type"] == "object":
        _walk_object(value, node, at, findings)
    elif node["type"] == "array":
        if not isinstance(value, list | tuple):
            findings.wrong(at, f"is {shown(value)}; a list is needed")
            return
        for i, item in enumerate(value):
            _walk(item, node["items"], (*at, i), findings)
    else:
        _walk_scalar(value, node, at, findings)


def _walk_object(value: Any, node: Node, at: Path, findings: Findings) -> None:
    if not isinstance(value, dict):
        findings.wrong(at, f"is {shown(value)}; an object is needed")
        return
    properties, others = node.get("properties"), node.get("additionalProperties")
    for key, item in value.items():
        if not isinstance(key, str):
            findings.problem(at, f"the key {shown(key)} is no string; write it in quotes")
        elif item is None:
            continue
        elif properties is not None and key in properties:
            _walk(item, properties[key], (*at, key), findings)
        elif properties is not None:
            findings.unknown(at, key, properties)
        elif others is not None:
            _walk(item, others, (*at, key), findings)
    for key in node.get("required", ()):
        if value.get(key) is None:
            findings.problem((*at, key), f"{key} is missing")


def _walk_scalar(value: Any, node: Node, at: Path, findings: Findings) -> None:
    match node["type"]:
        case "string" if not isinstance(value, str):
            findings.wrong(at, no_string(value))
        case "string" if "enum" in node and value not in node["enum"] and value:
            hint = findings.hint(value, node["enum"])
            findings.warning(at, f"{at[-1]} is {shown(value)}; Kubernetes knows {one_of(node['enum'])}{hint}")
        case "integer" if not _is_whole(value):
            findings.wrong(at, f"is {shown(value)}; a whole number is needed")
        case "number" if isinstance(value, bool) or not isinstance(value, int | float):
            findings.wrong(at, f"is {shown(value)}; a number is needed")
        case "boolean" if not isinstance(value, bool):
            findings.wrong(at, f"is {shown(value)}; write true or false")


def _walk_int_or_string(value: Any, node: Node, at: Path, findings: Findings) -> None:
    if _is_whole(value):
        return
    if isinstance(value, float):
        findings.wrong(at, f'is {shown(value)}, a number with a fraction; write it in quotes: "{shown(value)}"')
    elif not isinstance(value, str):
        findings.wrong(at, f"is {shown(value)}; write a whole number, or a string in quotes")
    elif "pattern" in node and not re.search(node["pattern"], value):
        findings.wrong(at, f"is {shown(value)}; write a quantity such as 2, 500m or 16Gi")


def _is_whole(value: Any) -> bool:
    is_whole = (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    return is_whole and LEAST_INT <= value <= MOST_INT


@functools.cache
def _keyed(name: str) -> Node | None:
    """Return the part of a definition that leads to lists whose entries must differ in their keys, or None."""
    return _keyed_part({"$ref": name})


def _keyed_part(node: Node) -> Node | None:
    if "$ref" in node and node["$ref"] not in definitions():
        return None
    node = resolved(node)
    fields = {key: part for key, child in node.get("properties", {}).items() if (part := _keyed_part(child))}
    items = _keyed_part(node["items"]) if "items" in node else None
    keys = node.get("x-kubernetes-list-map-keys")
    if not fields and not items and not keys:
        return None
    return {"fields": fields, "items": items, "keys": keys}


def _check_list_keys(value: Any, part: Node | None, at: Path, findings: Findings) -> None:
    """Note entries with the same keys: the API server refuses them, because server-side apply could not tell them apart."""
    if part is None:
        return
    if isinstance(value, dict):
        for key, child in part["fields"].items():
            if key in value:
                _check_list_keys(value[key], child, (*at, key), findings)
    elif isinstance(value, list | tuple):
        if part["keys"]:
            _check_entries_differ(value, part["keys"], at, findings)
        if part["items"]:
            for i, item in enumerate(value):
                _check_list_keys(item, part["items"], (*at, i), findings)


def _check_entries_differ(entries: Sequence[Any], keys: list[str], at: Path, findings: Findings) -> None:
    seen = set()
    is_sound = not findings.blames(at)
    for i, entry in enumerate(entries):
        if not is_sound and findings.blames((*at, i)):
            continue  # it may be no object, or have a key that cannot be compared
        identity = tuple([entry.get(key) or _KEY_DEFAULTS.get(key) for key in keys])
        if identity in seen:
            said = " and ".join(f"{key} {shown(entry[key])}" for key in keys if key in entry)
            findings.problem((*at, i), f"{at[-1]} has two entries with {said}; keep one")
        seen.add(identity)
