"""Write OpenAPI documents: version 3 for each group version, which kubectl reads for apply and explain, and a single one of version 2."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import orjson

from elastic.local.apiserver import schemas
from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.resources import Registry, ResourceType

INFO = {"title": "Kubernetes", "version": "v1.36.1"}
BINARY_V2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
NOTHING_V2 = b"\n\x032.0"
"""An empty document of version 2, as protobuf. kubectl asks for it about kinds that version 3 does not name. If the server refused, kubectl
would report a broken server and not a missing kind."""
_TEXT = {"type": "string", "uniqueItems": True}
_WRITE = [{"name": n, "in": "query", "schema": _TEXT} for n in ("dryRun", "fieldManager", "fieldValidation")]
_PATCH_TYPES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_STRATEGIC = "application/strategic-merge-patch+json"
"""Patch type of built-in kinds only. `kubectl apply` sends a type of patch that the document names."""


def base(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index(registry: Registry) -> Json:
    paths = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = base(group, version)
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest(registry, group, version)}"}
    return {"paths": paths}


def digest(registry: Registry, group: str, version: str) -> str:
    """Return a hash that changes with the document: never for built-in groups, and with the schemas of custom resources."""
    types = registry.of_version(group, version)
    known = [[t.plural, t.kind, t.strategy.version if isinstance(t.strategy, Custom) else None] for t in types]
    return hashlib.sha512(orjson.dumps([group, version, known])).hexdigest().upper()


def document(registry: Registry, group: str, version: str) -> Json | None:
    types = registry.of_version(group, version)
    if not types:
        return None
    found: Json = {}
    paths: Json = {}
    for t in types:
        _collect(t, found)
        paths |= _paths(t)
    return {"openapi": "3.0.0", "info": INFO, "paths": paths, "components": {"schemas": found}}


def component_name(t: ResourceType) -> str:
    if not t.custom:
        return t.schema_name
    return ".".join([*reversed(t.group.split(".")), t.version, t.kind])


def _collect(t: ResourceType, into: Json) -> None:
    """Add the kind's schema and all schemas that it refers to."""
    meta = {"$ref": schemas.PREFIX + schemas.OBJECT_META}
    gvk = [{"group": t.group, "kind": t.kind, "version": t.version}]
    if isinstance(t.strategy, Custom):
        given = t.strategy.declared
        properties = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, **given.get("properties", {}), "metadata": meta}
        into[component_name(t)] = {"type": "object", **given, "properties": properties, "x-kubernetes-group-version-kind": gvk}
        _follow([schemas.OBJECT_META], into)
    elif t.schema_name:
        _follow([t.schema_name], into)
    subs = [n for s in t.subresources if (n := schemas.schema_name(s.group or t.group, s.version or t.version, s.kind))]
    _follow([*subs, schemas.META + "DeleteOptions", schemas.META + "Status"], into)


def _follow(names: Iterable[str], into: Json) -> None:
    waiting = [n for n in names if n not in into]
    while waiting:
        name = waiting.pop()
        if name in into:
            continue
        into[name] = schema = schemas.component(name)
        waiting += [r for r in _references(schema) if r not in into]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].removeprefix(schemas.PREFIX)] if isinstance(value.get("$ref"), str) else []
        return own + [r for v in value.values() for r in _references(v)]
    return [r for v in value for r in _references(v)] if isinstance(value, list) else []


def _paths(t: ResourceType) -> Json:
    collection = f"/{base(t.group, t.version)}/{'namespaces/{namespace}/' if t.namespaced else ''}{t.plural}"
    gvk = {"group": t.group, "version": t.version, "kind": t.kind}
    out: Json = {collection: _operations(t, gvk, ("list", "create", "deletecollection"))}
    if t.namespaced and "list" in t.verbs:
        out[f"/{base(t.group, t.version)}/{t.plural}"] = _operations(t, gvk, ("list",))
    if "get" in t.verbs:
        out[collection + "/{name}"] = _operations(t, gvk, ("get", "update", "patch", "delete"))
    for s in t.subresources:
        inner = {"group": s.group if s.group is not None else t.group, "version": s.version or t.version, "kind": s.kind}
        out[f"{collection}/{{name}}/{s.name}"] = {m: _operation(t, inner, v) for v, m in _METHODS.items() if v in s.verbs}
    return out


_METHODS = {
    "list": "get",
    "create": "post",
    "get": "get",
    "update": "put",
    "patch": "patch",
    "delete": "delete",
    "deletecollection": "delete",
}


def _operations(t: ResourceType, gvk: Json, verbs: tuple[str, ...]) -> Json:
    return {_METHODS[v]: _operation(t, gvk, v) for v in verbs if v in t.verbs}


def _operation(t: ResourceType, gvk: Json, verb: str) -> Json:
    body = {"schema": {"$ref": schemas.PREFIX + component_name(t)}}
    out: Json = {
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": gvk,
        "responses": {
            "200": {"description": "OK", "content": {"application/json": body if verb != "list" else {"schema": {"type": "object"}}}}
        },
    }
    if verb in ("create", "update", "patch"):
        out["parameters"] = _WRITE + ([{"name": "force", "in": "query", "schema": {"type": "boolean"}}] if verb == "patch" else [])
        patches = _PATCH_TYPES if t.custom else (*_PATCH_TYPES, _STRATEGIC)
        kinds = patches if verb == "patch" else ("application/json", "application/yaml")
        out["requestBody"] = {"content": {k: body if verb != "patch" else {"schema": {"type": "object"}} for k in kinds}, "required": True}
    return out


def whole_v2(registry: Registry) -> bytes:
    """Return the document of version 2, which older clients read. It has definitions only."""
    found: Json = {}
    for t in registry:
        _collect(t, found)
    made = orjson.dumps({"swagger": "2.0", "info": INFO, "paths": {}, "definitions": found})
    return made.replace(schemas.PREFIX.encode(), b"#/definitions/")
