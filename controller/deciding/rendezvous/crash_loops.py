"""Names the workers at torch's own c10d whose containers end again and again.

Their pods count as running, and no agent of ours counts such ends against maxRestarts.
"""

from collections.abc import Iterator

from elastic.membership.bounds import printable
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import end_reasons
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.c10d_agents import own_container
from elastic_training.controller.facts.snapshot import Container, Pod

FEWEST = 2
"""An agent that found no store yet has another try."""
NAMED = 3


def in_words(view: JobView) -> str:
    """Name the workers that crash again and again; return "" if no worker does."""
    found = sorted(_looping(view), key=lambda entry: entry[0].name) if view.backend is RendezvousBackend.STORE else []
    if not found or view.closed:
        return ""
    names = ", ".join(pod.name for pod, _ in found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    what = "ends" if len(found) == 1 else "end"
    return f"{len(found)} of {view.job.workers} workers: {names} {what} again and again{_unbounded(view)}, {_end(view, found[0][1])}"


def _unbounded(view: JobView) -> str:
    is_bounded = view.job.run_policy.backoff_limit is not None
    return "" if is_bounded else " (maxRestarts does not count that at c10d; set runPolicy.backoffLimit)"


def _looping(view: JobView) -> Iterator[tuple[Pod, Container]]:
    for pod in view.answerable:
        own = own_container(view.job, pod)
        if own is None or own.waiting != "CrashLoopBackOff" or own.restarts < FEWEST or not own.last_exit_code:
            continue
        if end_reasons.of_container(own.last_exit_reason) is not end_reasons.Meaning.DISRUPTION:
            yield pod, own


def _end(view: JobView, container: Container) -> str:
    last = container.last_message.rstrip().rpartition("\n")[2].strip()
    return f"at last with exit code {container.last_exit_code}{f': {printable(last)}' if last else ''}"
