"""Decide whether a job may be stored, when the API server asks. The problems are those that `parse` finds.

An update is refused only for new problems. Old problems must not keep a user from suspending or repairing a job.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from elastic.api.errors import Problem, SpecError
from elastic.api.kinds import API_VERSION
from elastic.api.parser import parse
from elastic.api.trainer.modes import Mode
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.webhook import trainer_review
from elastic_training.controller.webhook.answers import AdmissionAnswer, Request, allowed, changes_no_spec, refused
from elastic_training.controller.webhook.trainer_review import LookUp


def unknown(kind: str, namespace: str, name: str) -> RuntimeSight:
    """Look up no runtime, because nobody can be asked."""
    return RuntimeSight()


def answer(
    request: Request, *, kinds: Collection[str], namespace: str | None, mode: Mode = Mode.OFF, look_up: LookUp = unknown
) -> AdmissionAnswer:
    """Answer a request. `kinds`, `namespace` and `mode` say which objects this controller controls; others pass."""
    if trainer_review.is_about_trainer(request):
        return trainer_review.answer(request, mode=mode, look_up=look_up)
    if not _is_ours(request, kinds=kinds, namespace=namespace) or changes_no_spec(request):
        return allowed(request)
    problems, warnings, _ = _found(request.object)
    if brought := _brought(request.old_object, problems):
        return refused(request, brought, warnings)
    return allowed(request, (*problems, *warnings))


def _is_ours(request: Request, *, kinds: Collection[str], namespace: str | None) -> bool:
    kind = request.kind
    return (
        f"{kind.group}/{kind.version}" == API_VERSION
        and kind.kind in kinds
        and not request.sub_resource
        and namespace in (None, request.namespace)
        and request.operation in ("CREATE", "UPDATE")
    )


def _brought(old: object, problems: Sequence[Problem]) -> Sequence[Problem]:
    """Return the new problems. If the old list was cut off, they cannot be known; an update that mends some must then pass."""
    if old is None or not problems:
        return problems
    known, _, is_whole = _found(old)
    return [problem for problem in problems if problem not in known] if is_whole else ()


def _found(obj: object) -> tuple[Sequence[Problem], Sequence[Problem], bool]:
    """Return problems, warnings, and whether these are all the problems there are."""
    try:
        return (), parse(obj)[1], True
    except SpecError as error:
        return error.problems, error.warnings, error.is_whole
