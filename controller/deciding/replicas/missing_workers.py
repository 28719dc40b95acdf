"""Say why fewer workers of an elastic job run, or meet, than are wanted.

The reasons are in `status.elastic.waitsFor` and in the message of the condition Running. Workers that are only starting are no reason.
"""

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from elastic.api.job import JobStatus
from elastic.api.kinds import WORKER
from elastic.membership.bounds import printable
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import first_error
from elastic_training.controller.deciding.rendezvous import crash_loops, etcd, latecomers, lost_state
from elastic_training.controller.deciding.replicas import creation_backoff
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.snapshot import ORDINARY_WAITS, Pod


def in_words(view: JobView, *, held: Collection[str]) -> str:
    """Say what keeps workers from running; empty if all run or nothing is known. `held` are the types with pods that wait."""
    pause = creation_backoff.in_words(view.status, view.snapshot, held=held).strip()
    return _in_words(view, [*_obstacles(view), *filter(None, (etcd.missing(view), pause))])


def obstacles_in_words(view: JobView) -> str:
    """Say the same without the pauses and the missing etcd, which conditions name in any case."""
    return _in_words(view, list(_obstacles(view)))


def _in_words(view: JobView, obstacles: Sequence[str]) -> str:
    if words := lost_state.in_words(view):
        return words
    job, workers = view.job, view.counts.get(WORKER, Tally())
    if job.elastic is None or workers.succeeded:
        return ""
    missing = job.workers - workers.active
    if missing <= 0 or not obstacles:
        unstarted, why = first_error.of_unstarted(view)
        return f"{unstarted} of {job.workers} workers: {why}" if why else crash_loops.in_words(view) or latecomers.in_words(view)
    return f"{missing} of {job.workers} workers: {printable(obstacles[0]).rstrip('.')}"


def _obstacles(view: JobView) -> Iterator[str]:
    for pod in view.snapshot.pods:
        if pod.type != WORKER.lower() or pod.is_deleting:
            continue
        if pod.unscheduled:
            yield f"{pod.name} has no node: {pod.unscheduled}"
        yield from _waiting(pod)


def _waiting(pod: Pod) -> Iterator[str]:
    for container in (*pod.stuck_inits, *pod.containers):
        if container.waiting and container.waiting not in ORDINARY_WAITS:
            yield f"{pod.name}, {container.name}: {container.waiting}{': ' if container.message else ''}{container.message}"


def without(status: JobStatus) -> JobStatus:
    """Clear the waits of a finished job. Keep its last ranks: its failure names one, and `elastic logs --rank` needs them."""
    if status.elastic is None:
        return status
    over = replace(status.elastic, waits_for="", hang=None, stragglers=(), failed_saves=())
    return replace(status, elastic=over) if over != status.elastic else status
