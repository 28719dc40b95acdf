"""Decide whether a job waits for workers with the state of training on a node that does not answer (`waitForLostStateSeconds`).

Their replacements are created meanwhile, but the rendezvous server forms no world without the state. The wait ends when the node is back,
when its pods are known to be gone, or when the time has passed.
"""

from datetime import datetime

from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.moments import LAST, after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.deadlines import has_state
from elastic_training.controller.deciding.status_room import listed
from elastic_training.controller.facts.snapshot import Pod

UNREACHABLE = "node-unreachable"
"""The signal of a node that may come back. Other nodes that are gone have lost the memory of their pods."""
UNNOTICED_S = 60.0
"""Time until a silent node is marked as unreachable. The server waits for it too, because it notices the silence first."""


def awaited(view: JobView) -> tuple[str, ...]:
    """Return the workers with the state that are at work, or may come back with their node."""
    return tuple(sorted(pod.name for pod in _holders(view)))


def await_s(job: Job) -> float:
    """Return how long the server may hold back a world without the state. The controller ends the wait earlier by an empty list."""
    seconds = job.elastic.wait_for_lost_state_seconds if job.elastic is not None else 0
    return seconds + UNNOTICED_S if seconds else 0.0


def look_again_at(view: JobView) -> datetime | None:
    """Return when the wait for the next worker ends."""
    return min((until for pod in _holders(view) if (until := _until(pod, view)) < LAST), default=None)


def in_words(view: JobView) -> str:
    """Say what the job waits for; return "" as long as any worker with the state can be reached."""
    holders = _holders(view)
    if not holders or any(_signal(pod, view) != UNREACHABLE for pod in holders):
        return ""
    until = max(_until(pod, view) for pod in holders)
    names, nodes = listed([pod.name for pod in holders]), listed(sorted({pod.node for pod in holders}))
    verb = "has" if len(holders) == 1 else "have"
    return f"the state of training, which only {names} on unreachable {nodes} {verb}, until {until:%H:%M:%S} UTC (waitForLostStateSeconds)"


def _holders(view: JobView) -> list[Pod]:
    policy, look = view.job.elastic, view.snapshot
    if policy is None or not policy.wait_for_lost_state_seconds or view.backend is not RendezvousBackend.OURS:
        return []
    workers = (pod for pod in look.pods if pod.type == WORKER.lower() and not pod.is_deleting and has_state(pod, look.world))
    is_there = (pod for pod in workers if pod.node in look.nodes or not look.sees_nodes)
    return [pod for pod in is_there if _until(pod, view) > look.now]


def _until(pod: Pod, view: JobView) -> datetime:
    notice = view.notices.get(pod.name)
    if notice is None or notice.meaning is Meaning.PREPARE:
        return LAST
    assert view.job.elastic is not None
    return after(notice.by, view.job.elastic.wait_for_lost_state_seconds if notice.signal == UNREACHABLE else 0.0)


def _signal(pod: Pod, view: JobView) -> str:
    notice = view.notices.get(pod.name)
    return notice.signal if notice is not None else ""
