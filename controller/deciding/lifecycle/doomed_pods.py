"""Decide when to delete the pods of a node that goes, if no worker can be asked to leave.

Workers cannot be asked at c10d's store, in static jobs, and in kinds that restart as a whole. Their pods are deleted early enough before
the loss to end in order: SIGTERM is the only notice that their programs get, and no disruption budget holds up a deletion. As everywhere,
the status names the leaving pods first.
"""

from dataclasses import dataclass
from datetime import datetime

from elastic.api.book import Leaving
from elastic.api.words import Cause
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.disruption import Notice, asked_to_leave, termination_grace_s, with_notice
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.status_room import with_leaving
from elastic_training.controller.facts.snapshot import Pod, PodPhase


@dataclass(frozen=True, slots=True)
class DoomedPods:
    """Pods of nodes that go: `leaving` is for the status, `may_go` are the pods to delete now."""

    leaving: tuple[Leaving, ...] = ()
    may_go: tuple[Pod, ...] = ()
    look_again_at: datetime | None = None


def doomed_pods(view: JobView) -> DoomedPods:
    """Return the pods whose node has said by when it goes."""
    if view.backend not in (RendezvousBackend.NONE, RendezvousBackend.STORE):
        return DoomedPods()
    stored = view.job.status.elastic.leaving if view.job.status.elastic is not None else ()
    known = [entry for entry in stored if entry.cause == Cause.DISRUPTION.value]
    pods = {pod.uid: pod for pod in view.snapshot.pods if pod.phase is not PodPhase.SUCCEEDED}
    standing = [entry for entry in known if (pod := pods.get(entry.uid)) is not None and _stands(pod, view)]
    still = [with_notice(entry, view.notices.get(entry.member)) for entry in standing]
    told = {entry.uid for entry in still}
    new = [
        asked_to_leave(pod, notice)
        for pod in pods.values()
        if pod.uid not in told and not pod.is_deleting and (notice := _notice(pod, view)) is not None
    ]
    waiting = [(pods[entry.uid], _latest(pods[entry.uid], entry, view)) for entry in still]
    now = view.snapshot.now
    going = tuple(pod for pod, at in waiting if not pod.is_deleting and (pod.phase is PodPhase.FAILED or (at is not None and at <= now)))
    out = with_leaving(still, new)
    moments = [at for entry in out if (at := _latest(pods[entry.uid], entry, view)) is not None and at > now]
    return DoomedPods(out, going, min(moments, default=None))


def _notice(pod: Pod, view: JobView) -> Notice | None:
    """Return the pod's notice if it leaves us something to do: the node goes, at a given time."""
    found = view.notices.get(pod.name)
    return found if found is not None and found.may_delete and found.meaning is Meaning.LEAVE else None


def _stands(pod: Pod, view: JobView) -> bool:
    """Return whether the notice still holds. Nothing takes it back once the pod is being deleted or its node is gone."""
    is_beyond = pod.is_deleting or pod.phase is PodPhase.FAILED or pod.node not in view.snapshot.nodes
    notice = view.notices.get(pod.name)
    return is_beyond or (notice is not None and notice.meaning is not Meaning.PREPARE)


def _latest(pod: Pod, entry: Leaving, view: JobView) -> datetime | None:
    """Return when the pod is deleted: its own grace before the loss, but at most half of the signal's time before it.

    A pod that has not begun to run is deleted at once.
    """
    notice = _notice(pod, view)
    if entry.by is None or notice is None:
        return None
    if pod.phase is PodPhase.PENDING:
        return view.snapshot.now
    return after(entry.by, -min(termination_grace_s(view.job, pod.type), notice.lead_s / 2))
