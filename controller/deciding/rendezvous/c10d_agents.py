"""Find the cause of an agent's end if torchrun's agents meet at torch's own c10d.

The first agent that ends with 0 closes the rendezvous for good. Every agent that comes or comes back later ends with an error.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from elastic.api.job import Job
from elastic_training.controller.deciding.lifecycle import usage_errors
from elastic_training.controller.facts.snapshot import Container, Pod, PodPhase

WINDOW = timedelta(seconds=120)
"""From a loss, or a first end with 0, to the end of the last agent that may follow from it: a lost member's own grace, torch's time-outs,
and its 30 s for workers."""
SKEW = timedelta(seconds=5)
"""The most that two times may differ although they are the same: clocks of hosts differ, and Kubernetes cuts times to seconds."""
LAST_OWN_CODE = 127
"""Codes above mean a signal: a process that ended that way did not give up."""


def own_container(job: Job, pod: Pod) -> Container | None:
    """Return the container that trains."""
    return next((container for container in pod.containers if container.name == job.kind.container), None)


def is_down(container: Container | None) -> bool:
    """Return whether the container has ended, or waits to be started."""
    return container is not None and (container.exit_code is not None or bool(container.waiting))


def gave_up(container: Container) -> bool:
    """Return whether the agent ended by itself, with an error that other agents may have caused."""
    if usage_errors.newest_by_log(container):
        return False
    code = container.last_exit_code if container.exit_code is None else container.exit_code
    return code is not None and 0 < code <= LAST_OWN_CODE


def first_ends(job: Job, pods: Sequence[Pod]) -> dict[str, datetime]:
    """Return, by group, when its first agent ended with 0."""
    firsts: dict[str, datetime] = {}
    for pod in pods:
        own = own_container(job, pod)
        if pod.phase is PodPhase.SUCCEEDED and not pod.is_deleting and own is not None and own.ended_at is not None:
            firsts[pod.group] = min(firsts.get(pod.group, own.ended_at), own.ended_at)
    return firsts


def came_too_late(job: Job, pod: Pod, first_end: datetime | None) -> bool:
    """Return whether the pod began, or began again, after an agent of its group had ended with 0.

    It is also late if it failed as an agent does that waits to join. A worker that fails long afterwards had joined, and went on training.
    """
    own = own_container(job, pod)
    if own is None or first_end is None:
        return False
    has_begun_late = own.started_at is not None and own.started_at > first_end + SKEW
    if pod.phase is not PodPhase.FAILED:
        return has_begun_late or is_down(own)
    follows = own.ended_at is not None and first_end - SKEW <= own.ended_at <= first_end + WINDOW
    return gave_up(own) and not pod.disruption and (has_begun_late or follows)
