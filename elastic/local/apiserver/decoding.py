"""Decode a request's body: read JSON or YAML, check apiVersion, kind and types, and handle unknown fields."""

from __future__ import annotations

import json
from typing import Any

import orjson
import yaml

from elastic.local.apiserver import protobuf, schemas
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, bad, bad_request, invalid
from elastic.local.apiserver.resources import ResourceType
from elastic.local.apiserver.typed import Decoder, WrongType, go_name
from elastic.nesting import LOADER, TOO_DEEP, is_too_deep, line_too_costly, line_too_deep

YAML_TYPES = ("application/yaml", "application/apply-patch+yaml", "text/yaml")
JSON_TYPES = ("", "application/json")
NOT_ITS_TAG = (AttributeError, LookupError, OverflowError, TypeError)
"""Exceptions of PyYAML for `!!timestamp x`, `!!bool x`, `!!int ""` and a number of base 60 that no float holds."""
MOST_TOLD = 100
"""Largest number of unknown and repeated fields that are reported, as at a real server."""
SUPPORTED = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


def parse(body: bytes, media: str) -> Any:
    """Return the plain value. Raise bad_request if the body cannot be read."""
    if media in YAML_TYPES and not body.lstrip().startswith(b"{"):  # JSON is valid YAML, but the JSON parser is much faster
        value = _yaml(body)
    else:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as e:
            raise _json_error(body, e) from None
    if is_too_deep(value):
        raise bad_request(f"error parsing the body: {TOO_DEEP}")
    return value


def _yaml(body: bytes) -> Any:
    try:
        if (line := line_too_deep(body)) is not None:
            raise bad_request(f"error parsing YAML: line {line}: {TOO_DEEP}")
        if (costly := line_too_costly(body)) is not None:
            raise bad_request("error parsing YAML: line {}: {}".format(*costly))
        return yaml.load(body, LOADER)
    except NOT_ITS_TAG as e:
        raise bad_request(f"error parsing YAML: a value does not fit its tag: {e!r}") from None
    except (yaml.YAMLError, ValueError) as e:  # an invalid month or a number with too many digits raises no YAMLError
        raise bad_request(f"error parsing YAML: error converting YAML to JSON: {e}") from None


def _json_error(body: bytes, error: Exception) -> StatusError:
    if not body.strip():
        return bad_request("unexpected end of JSON input")
    try:
        json.loads(body)
    except json.JSONDecodeError as e:
        if e.pos >= len(body.decode(errors="replace").rstrip()):
            return bad_request("unexpected end of JSON input")
        found = body.decode(errors="replace")[e.pos]
        return bad_request(f"invalid character '{found}' looking for beginning of value")
    except RecursionError:
        return bad_request(f"error parsing the body: {TOO_DEEP}")
    except UnicodeDecodeError:
        pass
    return bad_request(str(error))


def repeated_keys(body: bytes) -> list[str]:
    """Return duplicate keys of objects in a valid JSON text, up to the number that is reported."""
    found: dict[str, None] = {}

    def pairs(items: list[tuple[str, Any]]) -> None:
        if len(dict(items)) == len(items):
            return
        seen: set[str] = set()
        for key, _ in items:
            if key in seen and len(found) < MOST_TOLD:
                found[key] = None
            seen.add(key)

    json.loads(body, object_pairs_hook=pairs)
    return list(found)


def expect_kind(obj: Any, kind: ResourceType, *, body: bytes) -> Json:
    """Return the object with apiVersion and kind, which may be missing for built-in kinds. They must fit the path."""
    if not isinstance(obj, dict):
        raise bad_request(
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {go_name(obj)} into Go value of type struct"
        )
    for key in ("apiVersion", "kind"):
        if not isinstance(obj.get(key), str | None):
            raise bad_request(
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {go_name(obj[key])} into Go struct field .{key}"
            )
    if kind.custom:
        return _expect_custom(obj, kind, body)
    version, name = obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind
    if (version, name) != (kind.api_version, kind.kind):
        group, _, number = version.rpartition("/")
        found, want = f"{group}, Version={number}, Kind={name}", f"{kind.group}, Version={kind.version}, Kind={kind.kind}"
        raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): expected {want}, found {found}")
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind}


def _expect_custom(obj: Json, kind: ResourceType, body: bytes) -> Json:
    """Check that a custom resource names its apiVersion and kind."""
    for key, label in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        if not obj.get(key):
            text = body.decode(errors="replace")
            why = f"Object '{label}' is missing in '{text}'"
            raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): {why} ({text[:22]} ...)")
    if obj["apiVersion"] != kind.api_version:
        text = f"the API version in the data ({obj['apiVersion']}) does not match the expected API version ({kind.api_version})"
        raise bad_request(text)
    if obj["kind"] != kind.kind:
        name = (obj.get("metadata") or {}).get("name", "")
        raise invalid(kind.group, obj["kind"], name, [bad("kind", obj["kind"], f"must be {kind.kind}")])
    return obj


def typed(obj: Json, kind: ResourceType, known: Json | None = None) -> tuple[Json, list[str]]:
    """Return the object in the form of its built-in type, and the dropped unknown fields. `known` is the object before a patch."""
    decoder = Decoder(kind.kind)
    try:
        decoded = decoder.decode(obj, kind.schema, known=known)
    except WrongType as e:
        raise bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {e}') from None
    decoded.setdefault("metadata", {})
    return decoded, decoder.unknown


def body_as(call: Call, name: str, schema_name: str) -> Json:
    """Return a request's body in the form of a type that is not stored, such as options. An empty body is an empty object."""
    if not call.body.strip():
        return {}
    if call.media == protobuf.MEDIA:
        read: Any = protobuf.decode(call.body, name)
    else:
        read = parse(call.body, call.media if call.media in YAML_TYPES else "")
    return as_type(read, name, schema_name)


def as_type(value: Any, name: str, schema_name: str) -> Json:
    try:
        decoded: Json = Decoder(name).decode(value, schemas.component(schema_name))
    except WrongType as e:
        raise bad_request(f"the body cannot be handled as {name}: {e}") from None
    return decoded


class FieldPolicy:
    """Applies the parameter fieldValidation: Ignore, Warn (the default) or Strict."""

    def __init__(self, asked: str) -> None:
        self.mode = asked or "Warn"
        self.problems: list[str] = []

    def note(self, unknown: list[str], repeated: list[str]) -> None:
        told = [*(f'unknown field "{u}"' for u in unknown), *(f'duplicate field "{r}"' for r in repeated)]
        self.problems += told[: MOST_TOLD - len(self.problems)]

    def settle(self, what: str) -> list[str]:
        """Return the warnings to send. In the mode Strict, raise an error for them."""
        problems = list(dict.fromkeys(self.problems))
        if self.mode == "Strict" and problems:
            raise bad_request(f"{what}strict decoding error: {', '.join(problems)}")
        return problems if self.mode == "Warn" else []
