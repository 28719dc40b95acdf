"""Merge patch, JSON patch and strategic merge patch, applied to plain JSON. Apply patches are in managed.py."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import orjson
from jsonpointer import JsonPointerException, resolve_pointer

from elastic.local.apiserver import schemas
from elastic.local.apiserver.errors import Json, StatusError, bad_request
from elastic.nesting import TOO_DEEP, is_too_deep

MOST_COPIED = 3 << 20


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def json_patch(target: Json, operations: Any) -> Any:
    """RFC 6902; an operation that does not fit is 422, as kopf expects of a failed test."""
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > 10_000:
        raise StatusError(413, "RequestEntityTooLarge", f"The allowed maximum operations in a JSON patch is 10000, got {len(operations)}")
    copied = 0
    # Once, and not for each operation: it may be large, and there may be thousands.
    target, operations = _copy(target), _copy(operations)
    for i, op in enumerate(operations):
        try:
            copied += _copied(target, op)
            if copied > MOST_COPIED:
                raise StatusError(413, "RequestEntityTooLarge", f"Unable to complete the JSON patch: its copies exceed {MOST_COPIED} bytes")
            target = jsonpatch.apply_patch(target, [_lenient(target, op)], in_place=True)
        except RecursionError:
            raise bad_request(f"the JSON patch makes an object that cannot be stored: {TOO_DEEP}") from None
        except (jsonpatch.JsonPatchException, JsonPointerException, TypeError, KeyError, IndexError) as e:
            raise _unfit(op, i, e) from None
    if is_too_deep(target):
        raise bad_request(f"the JSON patch makes an object that cannot be stored: {TOO_DEEP}")
    return target


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise bad_request(f"the JSON patch cannot be applied: {TOO_DEEP}") from None


def _copied(target: Any, op: Any) -> int:
    """Return by how many bytes a copy operation makes the object grow. A few copies of copies would fill any memory."""
    if not isinstance(op, dict) or op.get("op") != "copy":
        return 0
    return len(orjson.dumps(resolve_pointer(target, str(op.get("from")), None)))


def _lenient(target: Any, op: Any) -> Any:
    """Return the operation; a replacement of a missing key becomes an addition, as in the real server's library."""
    if not isinstance(op, dict) or op.get("op") != "replace":
        return op
    way, _, last = str(op.get("path", "")).rpartition("/")
    holder = resolve_pointer(target, way, None)
    return {**op, "op": "add"} if isinstance(holder, dict) and last.replace("~1", "/").replace("~0", "~") not in holder else op


def _unfit(op: Any, index: int, error: Exception) -> StatusError:
    name, path = (op.get("op"), op.get("path")) if isinstance(op, dict) else (None, None)
    if name == "test":
        why = f"testing value {path} failed: test failed"
    elif name in ("add", "replace", "remove"):
        why = f"{name} operation does not apply: doc is missing path: {orjson.dumps(path).decode()}: missing value"
    else:
        why = f"operation {index} does not apply: {error}"
    return StatusError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}", details={})


def strategic(target: Json, patch: Any, schema: Json) -> Json:
    """Merge lists by the patch keys of the kind's schema, and obey $patch, $deleteFromPrimitiveList and $retainKeys."""
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a strategic merge patch must be an object")
    return _strategic_object(target, patch, schemas.resolved(schema))


def _strategic_object(target: Any, patch: Json, schema: Json) -> Json:
    directive = patch.get("$patch")
    if directive not in (None, "replace", "delete", "merge"):
        raise StatusError(500, "", f"unknown patch type: {directive} in map: {_go_map(patch)}")
    if directive == "replace":
        return {k: v for k, v in patch.items() if k != "$patch"}
    if directive == "delete":
        return {}
    out = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        keep = set(_directive(patch, "$retainKeys", of=str))
        out = {k: v for k, v in out.items() if k in keep}
    for key, value in patch.items():
        if key in ("$patch", "$retainKeys") or key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            gone, there = _directive(patch, key), out.get(field) or []
            if not isinstance(there, list):
                raise bad_request(f"{key} is given, but {field} is no list")
            out[field] = [v for v in there if v not in gone]
            continue
        if value is None:
            out.pop(key, None)
            continue
        field_schema = schema.get("properties", {}).get(key) or schema.get("additionalProperties") or {}
        order = patch.get(f"$setElementOrder/{key}")
        out[key] = _strategic_value(out.get(key), value, field_schema, order)
    for key in (k for k in patch if k.startswith("$setElementOrder/")):
        field = key.partition("/")[2]
        if field not in patch and isinstance(out.get(field), list):
            out[field] = _ordered(out[field], out[field], patch[key], _merge_key(schema.get("properties", {}).get(field, {})))
    return out


def _directive(patch: Json, key: str, *, of: type = object) -> list[Any]:
    """Return what a directive of the patch lists."""
    listed = patch[key]
    if not isinstance(listed, list) or not all(isinstance(item, of) for item in listed):
        raise bad_request(f"error decoding patch: {key} must be a list of {'strings' if of is str else 'values'}")
    return listed


def _merge_key(field: Json) -> str | None:
    return field.get("x-kubernetes-patch-merge-key")


def _strategic_value(target: Any, patch: Any, field: Json, order: list[Any] | None) -> Any:
    schema = schemas.resolved(field)
    if isinstance(patch, dict):
        if schema.get("type") == "array":
            raise bad_request("cannot restore slice from map")
        return _strategic_object(target, patch, schema)
    merges = "merge" in field.get("x-kubernetes-patch-strategy", "").split(",")
    if not isinstance(patch, list) or not merges:
        return _without_directives(patch)
    key = _merge_key(field)
    current = list(target) if isinstance(target, list) else []
    if key is None:
        merged: list[Any] = current + [v for v in patch if v not in current]
    else:
        merged = _merge_items(current, patch, key=key, schema=schemas.resolved(schema.get("items", {})))
    wanted = order if order is not None else [p for p in patch if not (isinstance(p, dict) and "$patch" in p)]
    return _ordered(merged, current, wanted, key)


def _merge_items(current: list[Any], patch: list[Any], *, key: str, schema: Json) -> list[Any]:
    if any(isinstance(p, dict) and p.get("$patch") == "replace" for p in patch):
        return [p for p in patch if p.get("$patch") != "replace"]
    out = list(current)
    for item in patch:
        if not isinstance(item, dict):
            raise bad_request(f"map: {item!r} does not contain declared merge key: {key}")
        if key not in item:
            raise bad_request(f"map: {_go_map(item)} does not contain declared merge key: {key}")
        at = next((i for i, c in enumerate(out) if isinstance(c, dict) and c.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            out = [c for c in out if c.get(key) != item[key]]
        elif at is None:
            out.append(_strategic_object({}, item, schema))
        else:
            out[at] = _strategic_object(out[at], item, schema)
    return out


def _go_map(item: Json) -> str:
    return "map[" + " ".join(f"{k}:{v}" for k, v in sorted(item.items())) + "]"


def _without_directives(value: Any) -> Any:
    return [v for v in value if not (isinstance(v, dict) and "$patch" in v)] if isinstance(value, list) else value


def _ordered(items: list[Any], before: list[Any], order: list[Any], key: str | None) -> list[Any]:
    """Return the items in this order. An item that the order does not name stays before the item that it preceded."""

    def named(values: list[Any]) -> list[Any]:
        return [v.get(key) if key and isinstance(v, dict) else v for v in values]

    wanted, old = named(order), named(before)
    mine = sorted((i for i, n in zip(items, named(items), strict=True) if n in wanted), key=lambda i: wanted.index(named([i])[0]))
    others = [i for i, n in zip(items, named(items), strict=True) if n not in wanted]
    out = []
    while mine and others:
        left, right = named([others[0]])[0], named([mine[0]])[0]
        first = left in old and right in old and old.index(left) < old.index(right)
        out.append(others.pop(0) if first else mine.pop(0))
    return out + mine + others
