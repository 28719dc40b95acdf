"""Bring JSON into the form of its built-in type, as decoding into the real server's types does.

Unknown fields are dropped and reported, nulls and empty lists and maps disappear, times and quantities get their usual form, and a value of
a wrong type is an error that names the field. Whether values make sense together is checked elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Any

from elastic.local.apiserver import quantities, schemas
from elastic.local.apiserver.errors import Json

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_TIME = schemas.META + "Time"
_MICRO_TIME = schemas.META + "MicroTime"
_FREE = {"io.k8s.apimachinery.pkg.runtime.RawExtension", schemas.META + "FieldsV1"}
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")
_KEPT_WHEN_EMPTY = {"policies", "storageClassName"}


class WrongType(Exception):
    """A value that the field's type cannot hold; the message is the decoder's."""


def go_name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class Decoder:
    """One decoding; collects the paths of fields the type does not know."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.unknown: list[str] = []

    def decode(self, value: Any, schema: Json, path: str = "", known: Any = None) -> Any:
        """Return the value in its type's form. `known` is the decoded value from which it was made; parts taken from it are skipped."""
        name = schemas.reference(schema)
        if name in _SCALARS:
            return _SCALARS[name](self, value, path)
        if name in _FREE:
            return value
        schema = schemas.components()[name] if name else schema
        if "properties" in schema:
            return self._struct(value, schema, path, known if isinstance(known, dict) else {})
        kind = schema.get("type")
        if kind == "object" and "additionalProperties" in schema:
            return self._map(value, schema["additionalProperties"], path)
        if kind == "array":
            self._expect(value, list, path, "array")
            return [self._item(v, schema["items"], f"{path}[{i}]") for i, v in enumerate(value)]
        if kind == "string":
            self._expect(value, str, path, "string")
            if schema.get("format") == "byte":
                self._bytes(value)
        elif kind == "boolean":
            self._expect(value, bool, path, "bool")
        elif kind == "integer":
            return self._integer(value, schema, path)
        elif kind == "number" and (not isinstance(value, int | float) or isinstance(value, bool)):
            self._wrong(value, path, "float64")
        return value

    def _struct(self, value: Any, schema: Json, path: str, known: Json) -> Json:
        if not isinstance(value, dict):
            self._wrong(value, path, "struct")
        properties, needed, out = schema["properties"], schema.get("required", ()), {}
        for key, item in value.items():
            field = properties.get(key)
            inner = f"{path}.{key}" if path else key
            if field is None:
                self.unknown.append(inner)
                continue
            if item is None:
                continue
            if item is known.get(key):
                out[key] = item
                continue
            decoded = self.decode(item, field, inner, known.get(key))
            if key not in needed and key not in _KEPT_WHEN_EMPTY and self._is_empty(decoded, field):
                continue
            out[key] = decoded
        return out

    @staticmethod
    def _is_empty(value: Any, field: Json) -> bool:
        """Return whether encoding leaves the value out: empty strings, lists and maps, but not empty structures."""
        if value == "" or value == []:
            return True
        return value == {} and "additionalProperties" in schemas.resolved(field)

    def _map(self, value: Any, schema: Json, path: str) -> Json:
        if not isinstance(value, dict):
            self._wrong(value, path, "map[string]" + str(schema.get("type", "")))
        zero = "" if schemas.resolved(schema).get("type") == "string" else None
        if zero is None:
            return {k: self.decode(v, schema, f"{path}.{k}") for k, v in value.items() if v is not None}
        return {k: zero if v is None else self.decode(v, schema, path) for k, v in value.items()}

    def _item(self, value: Any, schema: Json, path: str) -> Any:
        if value is None:
            return {} if "properties" in schemas.resolved(schema) else ""
        return self.decode(value, schema, path)

    def _expect(self, value: Any, kind: type, path: str, name: str) -> None:
        if not isinstance(value, kind):
            self._wrong(value, path, name)

    def _integer(self, value: Any, schema: Json, path: str) -> int:
        bits = schema.get("format", "int64")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(value, path, bits)
        if bits == "int32" and not -(2**31) <= value < 2**31:
            raise WrongType(f"json: cannot unmarshal number {value} into Go struct field {self._field(path)} of type int32")
        return int(value)

    def _field(self, path: str) -> str:
        plain = re.sub(r"\[\d+\]", "", path)
        return f"{self._kind}.{plain}"

    def _wrong(self, value: Any, path: str, expected: str) -> None:
        raise WrongType(f"json: cannot unmarshal {go_name(value)} into Go struct field {self._field(path)} of type {expected}")

    @staticmethod
    def _bytes(value: str) -> None:
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            at = next((i for i, c in enumerate(value) if not re.match(r"[A-Za-z0-9+/=]", c)), len(value))
            raise WrongType(f"illegal base64 data at input byte {at}") from None

    def _quantity(self, value: Any, path: str) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._wrong(value, path, "resource.Quantity")
        text = quantities.canonical(str(value))
        if text is None:
            raise WrongType(quantities.RULE)
        return text

    def _int_or_string(self, value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int):
            self._wrong(value, path, "intstr.IntOrString")
        return value

    def _time(self, value: Any, path: str) -> str | None:
        self._expect(value, str, path, "string")
        return _instant(value, micro=False)

    def _micro_time(self, value: Any, path: str) -> str | None:
        self._expect(value, str, path, "string")
        return _instant(value, micro=True)


_SCALARS: dict[str, Any] = {
    _QUANTITY: Decoder._quantity,
    _INT_OR_STRING: Decoder._int_or_string,
    _TIME: Decoder._time,
    _MICRO_TIME: Decoder._micro_time,
}


def _instant(text: str, *, micro: bool) -> str:
    layout = "2006-01-02T15:04:05.000000Z07:00" if micro else "2006-01-02T15:04:05Z07:00"
    m = _RFC3339.fullmatch(text)
    if not m:
        raise WrongType(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    if micro and (m[3] is None or len(m[3]) != 7):
        raise WrongType(f'parsing time "{text}" as "{layout}": cannot parse "{(m[3] or "") + m[4]}" as ".000000"')
    when = datetime.fromisoformat(f"{m[1]}T{m[2]}{'+00:00' if m[4] == 'Z' else m[4]}").astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S") + ((m[3] if micro else "") or "") + "Z"
