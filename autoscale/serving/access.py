"""May this caller read these values? The API server decides, asked once in ten seconds for each question (SubjectAccessReview)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from elastic.kube.client import Kube
from elastic.kube.resources import SUBJECT_ACCESS_REVIEWS
from elastic_training.autoscale.serving.answers import Asked
from elastic_training.autoscale.serving.identity import Caller

Object = dict[str, Any]
KEPT_S, MOST_KEPT = 10.0, 5000
MASTERS = "system:masters"
"""May everything, as at every API server."""


@dataclass(frozen=True, slots=True)
class Question:
    caller: Caller
    asked: Asked


def attributes(question: Question) -> Object:
    """Return the question as attributes of a SubjectAccessReview. An external metric is a resource of its name; a GET lists its values."""
    asked = question.asked
    common = {"group": asked.group, "version": asked.version, "namespace": asked.namespace}
    if not asked.resource:
        return {"resourceAttributes": common | {"verb": "list", "resource": asked.metric}}
    resource = {"verb": "get", "resource": asked.resource, "name": asked.name, "subresource": asked.metric}
    return {"resourceAttributes": common | resource}


class Access:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._known: dict[Question, tuple[float, bool]] = {}

    async def allows(self, question: Question) -> bool:
        caller = question.caller
        if MASTERS in caller.groups:
            return True
        known = self._known.get(question)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        spec: Object = {"user": caller.name, "groups": list(caller.groups), "extra": {k: list(v) for k, v in caller.extra}}
        spec |= {"uid": caller.uid} if caller.uid else {}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec | attributes(question)}
        allowed = bool(((await self._kube.create(SUBJECT_ACCESS_REVIEWS, review)).get("status") or {}).get("allowed"))
        while len(self._known) >= MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._known[question] = (time.monotonic() + KEPT_S, allowed)
        return allowed
