"""Make the errors of the API: a Status object with code, reason and details, and the causes of an invalid object.

The wording is that of a real server, because kubectl, kopf and people read it. This module knows nothing about HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake in an object: its field, its kind, and a sentence about it."""

    field: str
    reason: str
    message: str


def shown(value: object) -> str:
    """Return a value as messages show it: strings and structures as JSON, other values plain."""
    if value is None:
        return "null"
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def bad(field: str, value: object, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown(value)}" + (f": {why}" if why else ""))


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", "Required value" + (f": {why}" if why else ""))


def forbidden_field(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def duplicate(field: str, value: object) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {shown(value)}")


def unsupported(field: str, value: object, allowed: Iterable[str]) -> Cause:
    choices = ", ".join(f'"{a}"' for a in allowed)
    return Cause(
        field, "FieldValueNotSupported", f"Unsupported value: {shown(value)}" + (f": supported values: {choices}" if choices else "")
    )


def too_long(field: str, limit: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def wrong_type(field: str, value: object, why: str) -> Cause:
    return Cause(field, "FieldValueTypeInvalid", f"Invalid value: {shown(value)}: {why}")


class StatusError(Exception):
    """An error that becomes the answer. It may be raised anywhere below the HTTP edge."""

    def __init__(self, code: int, reason: str, message: str, *, details: Json | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details, self.headers = code, reason, message, details, headers or {}

    def status(self) -> Json:
        body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def _details(name: str, group: str, kind: str) -> Json:
    return {k: v for k, v in (("name", name), ("group", group), ("kind", kind)) if v}


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(group: str, plural: str, name: str) -> StatusError:
    message = f'{_qualified(group, plural)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=_details(name, group, plural))


def no_such_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(group: str, plural: str, name: str, *, being_deleted: bool = False) -> StatusError:
    what = _qualified(group, plural)
    message = f'object is being deleted: {what} "{name}" already exists' if being_deleted else f'{what} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(name, group, plural))


def conflict(group: str, plural: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_qualified(group, plural)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_details(name, group, plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> StatusError:
    listed = list(causes)
    lines = list(dict.fromkeys(f"{c.field}: {c.message}" for c in listed))
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    what = f"{kind}.{group}" if group else kind
    details = _details(name, group, kind)
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in listed]
    return StatusError(422, "Invalid", f'{what} "{name}" is invalid: {text}', details=details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unnamed(name: str) -> StatusError:
    return bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")


def forbidden(group: str, plural: str, name: str, why: str) -> StatusError:
    message = f'{_qualified(group, plural)} "{name}" is forbidden: {why}' if name else f"{_qualified(group, plural)} is forbidden: {why}"
    return StatusError(403, "Forbidden", message, details=_details(name, group, plural))


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def unsupported_media(accepted: Iterable[str]) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)
