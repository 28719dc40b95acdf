"""Apply structural schemas of custom resources: drop unknown fields, fill in defaults, and find mistakes.

A JSON Schema library validates values. This module prunes, fills in defaults, and turns the library's findings into causes.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonschema_rs

from elastic.local.apiserver.errors import Cause, Json, bad, duplicate, required, too_long, unsupported, wrong_type

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_INT_OR_STRING = "x-kubernetes-int-or-string"


def prune(value: Any, schema: Json, path: str, unknown: list[str]) -> Any:
    """Return the value without fields that the schema does not specify. Their paths are added to `unknown`."""
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
        keep = bool(schema.get(_PRESERVE)) or (schema.get("type") is None and not properties)
        out = {}
        for key, item in value.items():
            inner = f"{path}.{key}" if path else key
            if key in properties:
                out[key] = prune(item, properties[key], inner, unknown)
            elif isinstance(extra, dict):
                out[key] = prune(item, extra, inner, unknown)
            elif keep or extra is True or (schema.get(_EMBEDDED) and key in ("apiVersion", "kind", "metadata")):
                out[key] = item
            else:
                unknown.append(inner)
        return out
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune(v, schema["items"], f"{path}[{i}]", unknown) for i, v in enumerate(value)]
    return value


def has_defaults(schema: Any) -> bool:
    """Return whether there is a default anywhere in a schema."""
    if not isinstance(schema, dict):
        return False
    inner = (*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties"))
    return "default" in schema or any(has_defaults(s) for s in inner)


def default(value: Any, schema: Json) -> None:
    """Fill in defaults in place. A null that is not allowed counts as missing if there is a default."""
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
        for key, field in properties.items():
            if "default" in field and (key not in value or (value[key] is None and not field.get("nullable"))):
                value[key] = copy.deepcopy(field["default"])
            if key in value and value[key] is None and not field.get("nullable"):
                del value[key]
            if key in value:
                default(value[key], field)
        if isinstance(extra, dict):
            for key, item in value.items():
                if key in properties:
                    continue
                if item is None and not extra.get("nullable") and "default" in extra:
                    value[key] = copy.deepcopy(extra["default"])
                default(value[key], extra)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, item in enumerate(value):
            if item is None and not schema["items"].get("nullable") and "default" in schema["items"]:
                value[i] = copy.deepcopy(schema["items"]["default"])
            default(value[i], schema["items"])


def list_causes(value: Any, schema: Json, path: str) -> list[Cause]:
    """Return a cause for each duplicate item of a list by keys or of a set."""
    out: list[Cause] = []
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in value.items():
            inner = properties.get(key) or (extra if isinstance(extra, dict) else None)
            if inner and isinstance(item, dict | list):
                out += list_causes(item, inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
        seen: list[Any] = []
        for i, item in enumerate(value):
            identity = {k: item.get(k) for k in keys} if kind == "map" and isinstance(item, dict) else item
            if kind in ("map", "set") and identity in seen:
                out.append(duplicate(f"{path}[{i}]", identity))
            seen.append(identity)
            if isinstance(schema.get("items"), dict):
                out += list_causes(item, schema["items"], f"{path}[{i}]")
    return out


def json_schema(schema: Any) -> Any:
    """Return the schema as JSON Schema 2020: nullable and int-or-string become types, and exclusive bounds become numbers."""
    if not isinstance(schema, dict):
        return schema
    out: Json = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "definitions"):
            out[key] = {k: json_schema(v) for k, v in value.items()}
        elif key in ("allOf", "anyOf", "oneOf"):
            out[key] = [json_schema(v) for v in value]
        elif key in ("items", "not", "additionalProperties"):
            out[key] = json_schema(value)
        elif not key.startswith("x-kubernetes-") and key not in ("default", "description", "nullable", "example", "title", "format"):
            out[key] = value
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if out.pop(exclusive, False) is True:
            out[exclusive] = out.pop(bound)
    if schema.get("format") in ("date-time", "email", "ipv4", "ipv6", "uri", "uuid", "date"):
        out["format"] = schema["format"]
    if schema.get(_EMBEDDED):
        out["required"] = sorted({*out.get("required", ()), "apiVersion", "kind"})
    if schema.get(_INT_OR_STRING):
        out["type"] = ["integer", "string"]
        out.pop("anyOf", None)
    if schema.get("nullable") and "type" in out:
        out["type"] = [*(out["type"] if isinstance(out["type"], list) else [out["type"]]), "null"]
        if "enum" in out and None not in out["enum"]:
            out["enum"] = [*out["enum"], None]
    return out


def validator(schema: Json) -> Any:
    return jsonschema_rs.Draft202012Validator(json_schema(schema), validate_formats=True)


def causes(check: Any, obj: Json) -> list[Cause]:
    out: list[Cause] = []
    for error in check.iter_errors(obj):
        out += _cause(error)
    return out


def field_path(parts: list[Any]) -> str:
    text = ""
    for p in parts:
        text += f"[{p}]" if isinstance(p, int) else f".{p}" if text else str(p)
    return text


_TYPE_WORDS = {
    "NoneType": "null",
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}


def _cause(error: Any) -> list[Cause]:
    path, value, word = field_path(list(error.instance_path)), error.instance, error.kind.name
    where = path or "<nil>"
    if word == "required":
        name = error.kind.property
        return [required(f"{path}.{name}" if path else name)]
    if word == "type":
        types = [t for t in _types(error) if t != "null"] or ["null"]
        found = _TYPE_WORDS.get(type(value).__name__, "object")
        if set(types) == {"integer", "string"}:
            return [wrong_type(where, found, f'{path} in body must be of type integer,string: "{found}"')]
        return [wrong_type(where, found, f'{path} in body must be of type {types[0]}: "{found}"')]
    if word == "enum":
        return [unsupported(where, value, [str(o) for o in error.kind.options if o is not None])]
    return _bound(error, where, path, value, word)


def _types(error: Any) -> list[str]:
    return re.findall(r"\"(\w+)\"", error.message.rpartition(" is not of type")[2]) or re.findall(
        r"\"(\w+)\"", error.message.rpartition(" is not of types ")[2]
    )


def _bound(error: Any, where: str, path: str, value: Any, word: str) -> list[Cause]:
    limit = getattr(error.kind, "limit", None)
    sentences = {
        "minimum": f"{path} in body should be greater than or equal to {limit}",
        "maximum": f"{path} in body should be less than or equal to {limit}",
        "exclusiveMinimum": f"{path} in body should be greater than {limit}",
        "exclusiveMaximum": f"{path} in body should be less than {limit}",
        "minLength": f"{path} in body should be at least {limit} chars long",
        "minItems": f"{path} in body should have at least {limit} items",
        "minProperties": f"{path} in body should have at least {limit} properties",
        "uniqueItems": f"{path} in body shouldn't contain duplicates",
    }
    if word == "pattern":
        return [bad(where, value, f"{path} in body should match '{error.kind.pattern}'")]
    if word == "format":
        return [wrong_type(where, value, f'{path} in body must be of type {error.kind.format}: "{value}"')]
    if word == "multipleOf":
        return [bad(where, value, f"{path} in body should be a multiple of {error.kind.multiple_of}")]
    if word == "maxLength":
        return [too_long(where, limit or 0)]
    if word == "maxItems":
        return [Cause(where, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {limit} items")]
    if word == "maxProperties":
        return [Cause(where, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {limit} items")]
    if word in ("anyOf", "oneOf"):
        return [
            bad(
                where,
                value,
                f"{path} in body must validate {'at least one schema (anyOf)' if word == 'anyOf' else 'one and only one schema (oneOf)'}",
            )
        ]
    if word == "not":
        return [bad(where, value, f"{path} in body must not validate the schema (not)")]
    return [bad(where, value, sentences.get(word, error.message))]
