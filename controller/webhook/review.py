"""Decides whether a job may come in, as the API server asks before it stores one: what `parse` finds, in the words of `parse`.

An update is refused only for new problems. Old problems must not keep a user from suspending or mending a job.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from elastic.api.errors import Problem, SpecError
from elastic.api.kinds import API_VERSION
from elastic.api.parser import parse

MOST_TOLD = 20
LONGEST_WARNING = 256
"""An API server cuts what is longer, and drops warnings beyond 4096 characters in all."""


Word: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]


class Kind(msgspec.Struct, frozen=True):
    group: Word
    version: Word
    kind: Word


class Subject(msgspec.Struct, frozen=True):
    """What a review is about."""

    uid: Word
    kind: Kind
    name: Word = ""
    namespace: Word = ""


class Request(Subject, frozen=True, rename="camel", kw_only=True):
    """What the API server is about to store, and what it has stored."""

    operation: str
    sub_resource: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """An AdmissionReview that asks."""

    request: Request


class Cause(msgspec.Struct, frozen=True):
    field: str
    message: str
    reason: str = "FieldValueInvalid"


class Details(msgspec.Struct, frozen=True):
    name: str
    group: str
    kind: str
    causes: tuple[Cause, ...]


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


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """An AdmissionReview that answers."""

    response: Response
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


def answer(request: Request, *, kinds: Collection[str], namespace: str | None) -> Answer:
    """`kinds` and `namespace` are those that this controller controls; other objects pass."""
    if not _is_ours(request, kinds=kinds, namespace=namespace) or _changes_no_spec(request):
        return Answer(Response(request.uid, True))
    problems, warnings, _ = _found(request.object)
    if brought := _brought(request.old_object, problems):
        return refused(request, brought, warnings)
    return Answer(Response(request.uid, True, warnings=_in_words((*problems, *warnings))))


def refused(subject: Subject, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> Answer:
    return Answer(Response(subject.uid, False, _refusal(subject, problems), _in_words(warnings)))


def _is_ours(request: Request, *, kinds: Collection[str], namespace: str | None) -> bool:
    kind = request.kind
    return (
        f"{kind.group}/{kind.version}" == API_VERSION
        and kind.kind in kinds
        and not request.sub_resource
        and namespace in (None, request.namespace)
        and request.operation in ("CREATE", "UPDATE")
    )


def _changes_no_spec(request: Request) -> bool:
    """Labels, finalizers and owners are not ours to judge, and a job that is going must be let go."""
    new, old = request.object, request.old_object
    if new is None or (isinstance(new.get("metadata"), dict) and new["metadata"].get("deletionTimestamp")):
        return True
    return old is not None and old.get("spec") == new.get("spec")


def _brought(old: object, problems: Sequence[Problem]) -> Sequence[Problem]:
    """The new problems. If the old list was cut off, they cannot be known; an update that mends some must then pass."""
    if old is None or not problems:
        return problems
    known, _, is_whole = _found(old)
    return [problem for problem in problems if problem not in known] if is_whole else ()


def _found(obj: object) -> tuple[Sequence[Problem], Sequence[Problem], bool]:
    """Problems, warnings, and whether these are all the problems there are."""
    try:
        return (), parse(obj)[1], True
    except SpecError as error:
        return error.problems, error.warnings, error.is_whole


def _refusal(subject: Subject, problems: Sequence[Problem]) -> Refusal:
    more = len(problems) - MOST_TOLD
    words = "; ".join(map(str, problems[:MOST_TOLD])) + (f"; and {more} more problems" if more > 0 else "")
    causes = tuple(Cause(problem.path, problem.message) for problem in problems[:MOST_TOLD])
    return Refusal(words, Details(subject.name, subject.kind.group, subject.kind.kind, causes))


def _in_words(found: Sequence[Problem]) -> tuple[str, ...]:
    return tuple(str(each)[:LONGEST_WARNING] for each in found[:MOST_TOLD])
