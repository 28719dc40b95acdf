"""Decide what taking TrainJobs over from Kubeflow Trainer changes, and giving them back. Pure, as plan.py.

Both controllers make pods of their own for a TrainJob, so no TrainJob may train while it changes hands. A suspended one has no pods: the
object behind it goes, and the next controller makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api.counting import counted
from elastic.api.trainer.modes import Mode
from elastic.cli.adopting import plan
from elastic.cli.adopting.plan import Apply, Change, DeleteWebhook, Scale
from elastic.cli.installing import trainer
from elastic.cli.installing.obstacles import where
from elastic.cli.installing.trainer import TrainerSeen
from elastic.kube.resources import Object

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class DeleteIdle(Change):
    """JobSets or jobs behind suspended TrainJobs."""

    objects: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class AwaitEnd(Change):
    """The end of Kubeflow Trainer's controller, which renews its Lease until then."""


@dataclass(frozen=True, slots=True)
class Serve(Change):
    """Another mode of our installed control plane."""

    mode: Mode
    namespace: str


def obstacles(seen: TrainerSeen) -> Iterator[str]:
    """Yield why TrainJobs cannot change hands now."""
    if not seen.deployments and not seen.webhooks:
        yield f"no Kubeflow Trainer is here: no deployment of {trainer.PROGRAM}, none of its webhooks"
    elif seen.theirs:
        yield from trainer.of_theirs(seen)


def takeover(seen: TrainerSeen, *, ours: str | None) -> Iterator[Change]:
    """Yield the changes in their order. `ours` is the namespace of our control plane, if `elastic install` has made one."""
    for one in seen.deployments:
        if count := plan.replicas(one):
            yield plan.scaled(one, 0, f"stop {plan.titled(one)} ({count} to 0 replicas); no TrainJob starts until ours runs")
    for one in seen.webhooks:
        name = one["metadata"]["name"]
        words = f"delete the webhook configuration {name}, which refuses all TrainJobs without its server"
        yield DeleteWebhook(words, name, one["kind"])
    yield from _idle(seen.idle_job_sets, "JobSet", "our controller makes a job of its own")
    if seen.deployments:
        yield AwaitEnd("wait until Kubeflow Trainer's controller has ended")
    if ours is not None:
        yield Serve(f"serve all TrainJobs: `elastic install --trainjobs {Mode.INSTEAD} --namespace {ours}`", Mode.INSTEAD, ours)


def saved(seen: TrainerSeen, mode: Mode) -> Object:
    """Return the content of the file by which all can be given back."""
    operators = [plan.kept_operator(one) for one in seen.deployments]
    return {"operators": operators, "objects": [plan.bare(one) for one in seen.webhooks], "mode": mode.value}


def return_(kept: dict[str, Any], seen: TrainerSeen, *, ours: str | None) -> Iterator[Change]:
    """Yield the changes that give the TrainJobs back."""
    mode = Mode(kept["mode"])
    if ours is not None:
        yield Serve(f"serve {_words(mode)}: `elastic install --trainjobs {mode} --namespace {ours}`", mode, ours)
    yield from _idle(seen.idle_jobs, "job", "Kubeflow Trainer makes a JobSet")
    objects = tuple(kept["objects"])
    if objects:
        yield Apply(f"apply what was there before: {', '.join(one['metadata']['name'] for one in objects)}", objects)
    for operator in kept["operators"]:
        words = f"start {operator['namespace']}/{operator['name']} with {counted(operator['replicas'], 'replica')}"
        yield Scale(words, operator["namespace"], operator["name"], operator["replicas"])


def _words(mode: Mode) -> str:
    return "only the TrainJobs that ask for it" if mode is Mode.BESIDE else "no TrainJobs"


def _idle(found: Sequence[Object], word: str, then: str) -> Iterator[Change]:
    if found:
        names = ", ".join(where(one) for one in found[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        yield DeleteIdle(f"delete {counted(len(found), word)} of suspended TrainJobs ({names}{more}): {then} once they go on", tuple(found))
