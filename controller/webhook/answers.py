"""Define the reviews that the API server sends, and the answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from elastic.api.errors import Problem

MOST_TOLD = 20
LONGEST_WARNING = 256
"""An API server cuts longer warnings, and drops warnings beyond 4096 characters in all."""


Word: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]


class AdmissionKind(msgspec.Struct, frozen=True):
    group: Word
    version: Word
    kind: Word


class Subject(msgspec.Struct, frozen=True):
    """The object that a review is about."""

    uid: Word
    kind: AdmissionKind
    name: Word = ""
    namespace: Word = ""


class Request(Subject, frozen=True, rename="camel", kw_only=True):
    """The object that the API server is about to store, and the stored one."""

    operation: str
    sub_resource: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """An AdmissionReview that asks."""

    request: Request


class FieldCause(msgspec.Struct, frozen=True):
    field: str
    message: str
    reason: str = "FieldValueInvalid"


class Details(msgspec.Struct, frozen=True):
    name: str
    group: str
    kind: str
    causes: tuple[FieldCause, ...]


class Refusal(msgspec.Struct, frozen=True):
    message: str
    details: Details
    code: int = 422
    reason: str = "Invalid"


class Response(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str
    allowed: bool
    status: Refusal | None = None
    warnings: tuple[str, ...] = ()


class AdmissionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """An AdmissionReview that answers."""

    response: Response
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


def allowed(request: Request, warnings: Sequence[Problem] = ()) -> AdmissionAnswer:
    """Return the answer that lets an object in."""
    return AdmissionAnswer(Response(request.uid, True, warnings=_in_words(warnings)))


def refused(subject: Subject, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> AdmissionAnswer:
    """Return the answer that refuses an object with all its problems."""
    return AdmissionAnswer(Response(subject.uid, False, _refusal(subject, problems), _in_words(warnings)))


def changes_no_spec(request: Request) -> bool:
    """Return whether a request needs no judgement. Labels, finalizers and owners do not, nor does an object that is being deleted."""
    new, old = request.object, request.old_object
    if new is None or (isinstance(new.get("metadata"), dict) and new["metadata"].get("deletionTimestamp")):
        return True
    return old is not None and old.get("spec") == new.get("spec")


def _refusal(subject: Subject, problems: Sequence[Problem]) -> Refusal:
    more = len(problems) - MOST_TOLD
    words = "; ".join(map(str, problems[:MOST_TOLD])) + (f"; and {more} more problems" if more > 0 else "")
    causes = tuple(FieldCause(problem.path, problem.message) for problem in problems[:MOST_TOLD])
    return Refusal(words, Details(subject.name, subject.kind.group, subject.kind.kind, causes))


def _in_words(found: Sequence[Problem]) -> tuple[str, ...]:
    return tuple(str(each)[:LONGEST_WARNING] for each in found[:MOST_TOLD])
