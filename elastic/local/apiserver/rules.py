"""Run the validation rules of custom resources (x-kubernetes-validations), which are in CEL.

A rule about oldSelf runs only if there is an old value, and an unchanged value is not judged again. The CEL library is loaded for the first
rule, because most servers never run one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from elastic.local.apiserver.errors import Cause, Json, bad, duplicate, forbidden_field, required

UNCHECKED = Cause(
    "<nil>",
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the other errors first",
)
_MISSING = object()


def declared(schema: Any) -> bool:
    """Return whether a schema has any rule."""
    if isinstance(schema, dict):
        return "x-kubernetes-validations" in schema or any(declared(v) for v in schema.values())
    return any(declared(v) for v in schema) if isinstance(schema, list) else False


def check(schema: Json, new: Json, old: Json | None) -> list[Cause]:
    return list(_check(schema, new, old if old is not None else _MISSING, ""))


def _check(schema: Json, value: Any, old: Any, path: str) -> Iterator[Cause]:
    for rule in schema.get("x-kubernetes-validations") or ():
        yield from _judge(rule, schema, value, old, path)
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in value.items():
            inner = properties.get(key) or (extra if isinstance(extra, dict) else None)
            if inner:
                before = old.get(key, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _check(inner, item, before, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, item in enumerate(value):
            yield from _check(schema["items"], item, _correlated(schema, item, old), f"{path}[{i}]")


def _correlated(schema: Json, item: Any, old: Any) -> Any:
    """Return the old item with the same keys, in a list by keys. Items of other lists have no old value."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return _MISSING
    return next((o for o in old if isinstance(o, dict) and all(o.get(k) == item.get(k) for k in keys)), _MISSING)


def _judge(rule: Json, schema: Json, value: Any, old: Any, path: str) -> Iterator[Cause]:
    text = rule["rule"]
    if value is None:
        return
    has_past = old is not _MISSING and old is not None
    if "oldSelf" in text:
        if not has_past:
            return
    elif has_past and _view(text, value, path) == _view(text, old, path):
        return
    given = {"self": _cel(value, schema)}
    if has_past:
        given["oldSelf"] = _cel(old, schema)
    try:
        holds = bool(_program(text)(given))
    except Exception as e:  # an expression can make the library raise anything
        yield Cause(
            path or "<nil>",
            "FieldValueInvalid",
            f"Invalid value: {_shown_kind(value)}: {_reason(e)} evaluating rule: {rule.get('message') or text}",
        )
        return
    if not holds:
        yield _cause(rule, value, given, path)


def _view(text: str, value: Any, path: str) -> Any:
    """Return the part of a whole object on which a rule can depend: never most metadata, and status only if the rule names it."""
    if path or not isinstance(value, dict):
        return value
    name = {k: v for k, v in (value.get("metadata") or {}).items() if k in ("name", "generateName")}
    return {k: v for k, v in value.items() if k != "metadata" and (k != "status" or "status" in text)} | {"metadata": name}


def _cause(rule: Json, value: Any, given: dict[str, Any], path: str) -> Cause:
    message = rule.get("message") or f"failed rule: {rule['rule']}"
    if rule.get("messageExpression"):
        try:
            message = str(_program(rule["messageExpression"])(given))
        except Exception:  # as above; the plain message is used instead
            message = rule.get("message") or f"failed rule: {rule['rule']}"
    where = (path + rule.get("fieldPath", "")).lstrip(".") or "<nil>"
    reason = rule.get("reason", "FieldValueInvalid")
    if reason == "FieldValueForbidden":
        return forbidden_field(where, message)
    if reason == "FieldValueRequired":
        return required(where, message)
    if reason == "FieldValueDuplicate":
        return duplicate(where, value)
    if isinstance(value, dict | list):
        return Cause(where, reason, f"Invalid value: {message}")
    return bad(where, value, message)


def _shown_kind(value: Any) -> str:
    return '"object"' if isinstance(value, dict) else '"array"' if isinstance(value, list) else repr(value).replace("'", '"')


def _reason(error: Exception) -> str:
    text = str(error.args[0]) if error.args else str(error)
    return text.replace("no such member in mapping: ", "no such key: ").replace("'", "")


@cache
def _environment() -> Any:
    import celpy

    return celpy.Environment(runner_class=celpy.InterpretedRunner)


@cache
def _program(text: str) -> Any:
    environment = _environment()
    return environment.program(environment.compile(text)).evaluate


def judged(text: str, given: dict[str, Any]) -> bool | str:
    """Return whether an expression is true for plain values, or why it cannot be evaluated."""
    try:
        return bool(_program(text)({k: _cel(v, {}) for k, v in given.items()}))
    except Exception as e:  # as above
        return f"expression '{text}' resulted in error: {_reason(e)}"


def problem(text: str) -> str:
    """Return why an expression cannot be compiled; empty if it can."""
    try:
        _program(text)
    except Exception as e:  # the library raises its own and the parser's errors
        return f"compilation failed: {e}"
    return ""


def _cel(value: Any, schema: Json) -> Any:
    """Return a value with the types of the schema: a number is a double and an integer is an int, regardless of how the JSON writes it."""
    from celpy import celtypes

    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, str):
        return celtypes.StringType(value)
    if isinstance(value, float) or (isinstance(value, int) and schema.get("type") == "number"):
        return celtypes.DoubleType(value)
    if isinstance(value, int):
        return celtypes.IntType(value)
    if isinstance(value, list):
        items = schema.get("items")
        return celtypes.ListType([_cel(v, items if isinstance(items, dict) else {}) for v in value])
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        free = extra if isinstance(extra, dict) else {}
        return celtypes.MapType({celtypes.StringType(k): _cel(v, properties.get(k) or free) for k, v in value.items() if v is not None})
    return None
