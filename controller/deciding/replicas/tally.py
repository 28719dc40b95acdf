"""Count a job's pods by replica type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic.api.job import Job
from elastic_training.controller.facts.snapshot import Pod, PodPhase


@dataclass(frozen=True, slots=True)
class Tally:
    """The pods of one type, by how they are."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    leaving: int = 0


def tally(job: Job, pods: Iterable[Pod]) -> Mapping[str, Tally]:
    """Return the counts by canonical type, for every type that the job has."""
    by_word: dict[str, list[Pod]] = {}
    for pod in pods:
        by_word.setdefault(pod.type, []).append(pod)
    return {type: _count(by_word.get(type.lower(), ())) for type in job.replicas}


def _count(pods: Iterable[Pod]) -> Tally:
    found = list(pods)
    return Tally(
        active=sum(pod.is_active for pod in found),
        # A program that was stopped may end with 0 although its work is not done.
        succeeded=sum(pod.phase is PodPhase.SUCCEEDED and not pod.is_deleting for pod in found),
        failed=sum(pod.phase is PodPhase.FAILED and not pod.is_deleting for pod in found),
        leaving=sum(pod.phase is PodPhase.RUNNING and pod.is_deleting for pod in found),
    )
