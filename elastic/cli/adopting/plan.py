"""Decide what changes in a cluster when we take over from the Training Operator, or give back.

Pure: the input is objects, and nothing is requested. `mpi_operator` does the same for the MPI Operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api import webhook
from elastic.api.counting import counted
from elastic.api.kinds import API_VERSION, GROUP, KINDS
from elastic.client.summary import summary
from elastic.kube.resources import Object

OPERATOR_LABEL = "control-plane=kubeflow-training-operator"
WEBHOOK_SUFFIX = "validator.training-operator.kubeflow.org"
SERVED = API_VERSION.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the cluster."""

    operators: Sequence[Object]
    webhooks: Sequence[Object]
    definitions: Sequence[Object]
    """Definitions of our kinds."""
    jobs: Sequence[Object]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is done, in words."""

    words: str


@dataclass(frozen=True, slots=True)
class Scale(Change):
    namespace: str
    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class DeleteWebhook(Change):
    name: str
    kind: str = "ValidatingWebhookConfiguration"


@dataclass(frozen=True, slots=True)
class Apply(Change):
    """Definitions and webhooks."""

    objects: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class DeleteDefinition(Change):
    """If it stores that version, it goes with its objects, unless there are others than were seen, or one has changed since."""

    name: str
    api_version: str
    seen: frozenset[tuple[str, int]]
    """Uid and generation of each."""
    otherwise: str
    """Remedy if there are others."""


@dataclass(frozen=True, slots=True)
class Create(Change):
    """A job."""

    object: Object


def obstacles(seen: Seen) -> Iterator[str]:
    """Yield the reasons why this cluster cannot be taken over as it is."""
    for definition in seen.definitions:
        stored = (definition.get("status") or {}).get("storedVersions") or [SERVED]
        if other := [version for version in stored if version != SERVED]:
            name = definition["metadata"]["name"]
            yield (
                f"{name} has objects of version {', '.join(other)}, which are another operator's; "
                "`elastic adopt --mpi-operator` takes the MPI Operator's jobs over"
            )


def takeover(seen: Seen, ours: Sequence[Object]) -> Iterator[Change]:
    """Yield the changes in an order that loses nothing: pods go on training while no controller acts. `ours` are the new definitions."""
    for operator in seen.operators:
        if count := replicas(operator):
            yield scaled(operator, 0, f"stop {titled(operator)} ({count} to 0 replicas); pods train on, nothing starts until ours runs")
    for one in seen.webhooks:
        name = one["metadata"]["name"]
        yield DeleteWebhook(f"delete the webhook configuration {name}, which refuses all jobs without its server", name)
    known = {definition["metadata"]["name"] for definition in seen.definitions}
    replaced = [item["metadata"]["name"] for item in ours if item["metadata"]["name"] in known]
    added = [item["metadata"]["name"] for item in ours if item["metadata"]["name"] not in known]
    parts = [f"replace {len(replaced)}" if replaced else "", f"add {len(added)}" if added else ""]
    yield Apply(f"{' and '.join(filter(None, parts))} definitions of kinds ({GROUP}); stored jobs stay", tuple(ours))


def saved(seen: Seen) -> Object:
    """Return the facts that giving back needs."""
    return {
        "operators": [kept_operator(one) for one in seen.operators],
        "objects": [bare(one) for one in (*seen.definitions, *seen.webhooks)],
    }


def return_(kept: Object, ours: Sequence[Object]) -> Iterator[Change]:
    """ours: the deployments of our controllers."""
    for one in ours:
        if count := replicas(one):
            yield scaled(one, 0, f"stop {titled(one)} ({count} to 0 replicas); pods train on")
    yield DeleteWebhook(f"delete the webhook configuration {webhook.NAME}, where it is", webhook.NAME)
    objects = tuple(kept["objects"])
    names = ", ".join(one["metadata"]["name"] for one in objects)
    yield Apply(f"apply what was there before: {names}; stored jobs stay", objects)
    for operator in kept["operators"]:
        where = f"{operator['namespace']}/{operator['name']}"
        words = f"start {where} with {counted(operator['replicas'], 'replica')}"
        yield Scale(words, operator["namespace"], operator["name"], operator["replicas"])


def jobs_in_words(seen: Seen) -> str:
    going = [job for job in seen.jobs if not summary(KINDS[job["kind"]], job).is_over]
    return f"{counted(len(seen.jobs), 'job')}, {len(going)} of them not over; they stay, and their pods run on"


def scaled(deployment: Object, count: int, words: str) -> Scale:
    return Scale(words, deployment["metadata"]["namespace"], deployment["metadata"]["name"], count)


def replicas(deployment: Object) -> int:
    count = (deployment.get("spec") or {}).get("replicas")
    return count if isinstance(count, int) else 1


def titled(deployment: Object) -> str:
    return f"deployment {deployment['metadata']['namespace']}/{deployment['metadata']['name']}"


def identity(one: Object) -> tuple[str, int]:
    """Return uid and generation. The generation changes with the spec, and not with the status."""
    return str(one["metadata"]["uid"]), int(one["metadata"].get("generation") or 0)


def stores(definition: Object, version: str) -> bool:
    versions = (definition.get("spec") or {}).get("versions") or ()
    return [one.get("name") for one in versions if one.get("storage")] == [version]


def serves(definition: Object) -> bool:
    """Our version; the MPI Operator's definition alone does not."""
    versions = (definition.get("spec") or {}).get("versions") or ()
    return any(one.get("name") == SERVED for one in versions)


def kept_operator(one: Object) -> dict[str, Any]:
    return {"namespace": one["metadata"]["namespace"], "name": one["metadata"]["name"], "replicas": replicas(one)}


def bare(one: Object) -> Object:
    """Return the object as a user would apply it: without the fields that the server added."""
    kept = {key: value for key, value in one["metadata"].items() if key in ("name", "labels", "annotations")}
    return {**{key: value for key, value in one.items() if key not in ("status", "metadata")}, "metadata": kept}
