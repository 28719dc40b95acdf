"""Provide Kubernetes' schema of a pod template and of an autoscaling metric, for the CRDs and for checks of users' objects.

The schema is in kubernetes.json, which scripts/pod_schema.py cuts out of an API server's OpenAPI. It is loaded when it is first needed.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

INT_OR_STRING: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
Node: TypeAlias = dict[str, Any]

POD_TEMPLATE = "PodTemplateSpec"
METRIC = "MetricSpec"

LEAST_INT, MOST_INT = -(2**63), 2**63 - 1
"""No field of Kubernetes takes a whole number beyond."""
_INT: Any = Annotated[int, msgspec.Meta(ge=LEAST_INT, le=MOST_INT)]
_SIMPLE: dict[str, Any] = {"string": str, "integer": _INT, "number": float, "boolean": bool}


@functools.cache
def definitions() -> dict[str, Node]:
    text = importlib.resources.files("elastic.api").joinpath("kubernetes.json").read_bytes()
    found: dict[str, Node] = msgspec.json.decode(text)
    return found


def resolved(node: Node) -> Node:
    return definitions()[node["$ref"]] if "$ref" in node else node


def structural(name: str) -> Node:
    """Return a definition with all references written out, as a CRD needs it. It has no enums: a newer Kubernetes may know more words."""
    return _inlined(definitions()[name])


def _inlined(node: Node) -> Node:
    node = {key: value for key, value in resolved(node).items() if key != "enum"}
    if "x-kubernetes-int-or-string" in node:
        return INT_OR_STRING | node
    if "properties" in node:
        node["properties"] = {name: _inlined(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in node:
            node[key] = _inlined(node[key])
    return node


@functools.cache
def fast_type(name: str) -> Any:
    """Return a msgspec type that takes certainly correct values. A value that it refuses may still be correct, or deserve a warning."""
    return _fast(definitions()[name], name)


def _fast(node: Node, name: str) -> Any:
    if "$ref" in node:
        return fast_type(node["$ref"])
    if "x-kubernetes-int-or-string" in node:
        return _INT | (Annotated[str, msgspec.Meta(pattern=node["pattern"])] if "pattern" in node else str)
    if "enum" in node:
        return Literal[tuple(node["enum"])]
    if "properties" in node:
        return _fast_struct(node, name)
    if node["type"] == "array":
        return list[_fast(node["items"], name)]  # type: ignore[misc]
    if node["type"] == "object":
        values = _fast(node["additionalProperties"], name) if "additionalProperties" in node else Any
        return dict[str, values]  # type: ignore[valid-type]
    return _SIMPLE[node["type"]]


def _fast_struct(node: Node, name: str) -> Any:
    """Return a struct with made-up field names, because `from` and `continue` are no names in Python."""
    wire_names = {f"field_{i}": wire for i, wire in enumerate(node["properties"])}
    required = node.get("required", ())
    fields: list[Any] = []
    for made_up, wire in wire_names.items():
        kind = _fast(node["properties"][wire], f"{name}_{wire}")
        fields.append((made_up, kind) if wire in required else (made_up, kind | None, None))
    return msgspec.defstruct(name, fields, rename=wire_names, kw_only=True, forbid_unknown_fields=True, gc=False)
