"""Decide whether a TrainJob or a runtime may be stored, by the controller's checks. A TrainJob's checks may need its runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elastic.api.errors import Problem
from elastic.api.trainer.modes import Mode, serves
from elastic.api.trainer.train_job import API_VERSION, CLUSTER_RUNTIME, RUNTIME, TRAIN_JOB
from elastic_training.controller.deciding.trainjobs import admission
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.deciding.trainjobs.lowering import runtime_key
from elastic_training.controller.webhook.answers import AdmissionAnswer, Request, allowed, changes_no_spec, refused

LookUp = Callable[[str, str, str], RuntimeSight]
"""Return the runtime of this kind, namespace and name."""
UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""Errors at an object that no API server sends, because it checks the form first. Anybody may call the webhook, and must not end it."""


def is_about_trainer(request: Request) -> bool:
    """Return whether the request is about an object of Kubeflow Trainer's API that is checked here."""
    kind = request.kind
    return f"{kind.group}/{kind.version}" == API_VERSION and kind.kind in (TRAIN_JOB, RUNTIME, CLUSTER_RUNTIME) and not request.sub_resource


def answer(request: Request, *, mode: Mode, look_up: LookUp) -> AdmissionAnswer:
    """Answer a request about a TrainJob or a runtime. Objects that our controller does not serve pass."""
    if mode is Mode.OFF or request.operation not in ("CREATE", "UPDATE") or changes_no_spec(request):
        return allowed(request)
    try:
        return _judged(request, mode, look_up)
    except UNREADABLE as error:
        return refused(request, [Problem((), f"the object does not have the form of its definition ({error!r}); correct it")])


def _judged(request: Request, mode: Mode, look_up: LookUp) -> AdmissionAnswer:
    new, old = request.object or {}, request.old_object
    if request.kind.kind == TRAIN_JOB:
        return _of_train_job(request, new, old, look_up) if serves(mode, new) else allowed(request)
    if mode is not Mode.INSTEAD:
        return allowed(request)
    warnings = admission.warnings_of_runtime(request.kind.kind, new)
    return _said(request, _new(admission.of_runtime(new), admission.of_runtime(old) if old is not None else ()), warnings)


def _of_train_job(request: Request, new: dict[str, Any], old: dict[str, Any] | None, look_up: LookUp) -> AdmissionAnswer:
    kind, namespace, name = runtime_key({**new, "metadata": {"namespace": request.namespace}})
    sight = look_up(kind, namespace, name) if name else RuntimeSight()
    problems = admission.of_train_job(new, sight)
    if old is not None:
        problems = [*_new(problems, admission.of_train_job(old, sight)), *admission.of_update(new, old)]
    return _said(request, problems, admission.of_deprecation(sight.object))


def _new(problems: Sequence[Problem], known: Sequence[Problem]) -> list[Problem]:
    """Return the problems that an update brings. Old ones must not keep a user from suspending or correcting an object."""
    return [problem for problem in problems if problem not in known]


def _said(request: Request, problems: Sequence[Problem], warnings: Sequence[Problem]) -> AdmissionAnswer:
    return refused(request, problems, warnings) if problems else allowed(request, warnings)
