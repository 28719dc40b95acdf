"""Read the protobuf in which kubectl and other Go clients send built-in kinds. Answers are JSON, which these clients accept too.

protobuf.json has the names of each component's fields by number. Their types are those of the same component in schemas.json. A name after
`+` is a component whose fields JSON shows in the component around it.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from elastic.local.apiserver import schemas
from elastic.local.apiserver.errors import Json, bad_request, unsupported_media
from elastic.nesting import TOO_DEEP, is_too_deep

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_DEEPEST = 64
_UNSET_NAMES = (
    "hostPort nodePort minReadySeconds generation observedGeneration initialDelaySeconds timeoutSeconds periodSeconds successThreshold "
    "failureThreshold hostNetwork hostPID hostIPC stdin stdinOnce tty readOnly paused publishNotReadyAddresses healthCheckNodePort"
)
_UNSET = frozenset(_UNSET_NAMES.split())
"""Fields that clients send as zero although JSON would leave them out. A zero in all other fields counts."""
_TIME = schemas.META + "Time"
_MICRO_TIME = schemas.META + "MicroTime"


@cache
def _names() -> dict[str, list[str | None]]:
    loaded: dict[str, list[str | None]] = orjson.loads(files(__package__).joinpath("protobuf.json").read_bytes())
    return loaded


def decode(body: bytes, expected: str) -> Json:
    """Return the object in an envelope as JSON. `expected` is the kind, for messages."""
    if not body.startswith(_MAGIC):
        why = f"provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({body[:12].hex()})"
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): {why}")
    if len(body) == len(_MAGIC):
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): empty body ({body.hex()})")
    try:
        envelope = {number: value for number, value in _parts(body[len(_MAGIC) :]) if isinstance(value, bytes)}
        meta = {number: value.decode() for number, value in _parts(envelope.get(1, b"")) if isinstance(value, bytes)}
        version, kind = meta.get(1, ""), meta.get(2, "")
        return {"apiVersion": version, "kind": kind, **_message(envelope.get(2, b""), _component(version, kind, expected), 0)}
    except (IndexError, ValueError, struct.error) as e:
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): {e}") from None


def _component(version: str, kind: str, expected: str) -> str:
    group, _, number = version.rpartition("/")
    name = schemas.META + kind if kind == "DeleteOptions" else schemas.schema_name(group, number, kind)
    if name not in _names():
        raise unsupported_media(("application/json", "application/yaml", f"{MEDIA} (not for {kind or expected})"))
    return name


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError("a number is too long")


def _parts(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers with their values: numbers, or the bytes of everything else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or at + size > len(data):
            raise IndexError(f"field {number} does not fit into the message")
        yield number, data[at : at + size]
        at += size


def _message(data: bytes, component: str, depth: int, properties: Json | None = None) -> Json:
    """Decode a message. `properties` are those of the component around it, if JSON shows its fields there."""
    if depth > _DEEPEST:
        raise ValueError(f"messages are nested more than {_DEEPEST} deep")
    fields = _names().get(component, [])
    known = properties if properties is not None else schemas.component(component).get("properties") or {}
    out: Json = {}
    for number, value in _parts(data):
        name = fields[number - 1] if 0 < number <= len(fields) else None
        if name is None:
            continue
        if name.startswith("+"):
            out |= _message(_sized(value), name[1:], depth + 1, known)
            continue
        _put(out, name, known.get(name) or {}, value, depth)
    return out


def _put(out: Json, name: str, schema: Json, value: int | bytes, depth: int) -> None:
    if schema.get("type") == "array":
        out.setdefault(name, []).append(_value(value, schema.get("items") or {}, depth))
    elif isinstance(schema.get("additionalProperties"), dict):
        pair = dict(_parts(_sized(value)))
        key = _sized(pair.get(1, b"")).decode()
        out.setdefault(name, {})[key] = _value(pair.get(2, b""), schema["additionalProperties"], depth)
    else:
        made = _value(value, schema, depth)
        if made not in ("", None) and (made or name not in _UNSET):
            out[name] = made


def _value(value: int | bytes, schema: Json, depth: int) -> Any:
    component = schemas.reference(schema)
    if component:
        return _special(_sized(value), component) if component not in _names() else _message(_sized(value), component, depth + 1)
    kind = schema.get("type")
    if kind == "boolean":
        return bool(value)
    if isinstance(value, int):
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind == "number":
        return struct.unpack("<d", value)[0]
    if schema.get("format") == "byte":
        return base64.b64encode(value).decode()
    return value.decode()


def _special(data: bytes, component: str) -> Any:
    """Decode types that JSON does not show by their fields."""
    fields = dict(_parts(data))
    if component in (_TIME, _MICRO_TIME):
        return _moment(fields, "microseconds" if component == _MICRO_TIME else "seconds")
    if component.endswith(".IntOrString"):
        return _sized(fields.get(3, b"")).decode() if fields.get(1) else _value(fields.get(2, 0), {}, 0)
    inner = _sized(fields.get(1, b""))
    if component.endswith(".Quantity"):
        return inner.decode()
    value = orjson.loads(inner) if inner else None
    if is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def _moment(fields: dict[int, int | bytes], precision: str) -> str | None:
    seconds, nanos = (_value(fields.get(n, 0), {}, 0) for n in (1, 2))
    if not isinstance(seconds, int) or not isinstance(nanos, int) or not (seconds or nanos):
        return None
    try:
        at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)
    except (OverflowError, OSError) as e:
        raise ValueError(f"{seconds} s is no time: {e}") from None
    return at.isoformat(timespec=precision).replace("+00:00", "Z")


def _sized(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where text or a message is expected")
    return value
