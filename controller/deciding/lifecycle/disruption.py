"""Decides who must leave because the cluster says so, and by when: by the signals that a pod and its node show (`elastic.signals.table`).
A plain cordon is no notice: `replica_slots.wanted` says when it brings a replacement.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from controller.deciding.moments import after
from controller.watching.snapshot import Phase, Pod, Snapshot
from elastic.signals.seen import Sight, tolerated_for
from elastic.signals.signal import Deadline, Meaning

GRACE_S = 30.0
"""What the cluster gives a pod that must go, where nothing says otherwise."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A worker must go, or may have to: why, and by when at the latest."""

    reason: str
    by: datetime
    signal: str
    """The name of the row of the table."""
    meaning: Meaning = Meaning.LEAVE
    lead_s: float = GRACE_S
    """How long such a notice is."""
    is_of_node: bool = False
    """Its node goes. Otherwise the cluster ends the pod itself."""

    @property
    def may_delete(self) -> bool:
        """May we delete the pod? One that the cluster ends is the cluster's to delete, and on a node that is gone it changes nothing."""
        return self.is_of_node and self.meaning is not Meaning.GONE


def notices(snapshot: Snapshot) -> dict[str, Notice]:
    """By pod name, for every running pod that must go whatever we do, or may have to."""
    found = {}
    for pod in snapshot.pods:
        if pod.phase is Phase.RUNNING and (notice := _notice(pod, snapshot)) is not None:
            found[pod.name] = notice
    return found


def _notice(pod: Pod, snapshot: Snapshot) -> Notice | None:
    """The first urgent one; what the pod itself shows comes before what its node shows."""
    found = list(_sights(pod, snapshot))
    urgent = (notice for notice in found if notice.meaning is not Meaning.PREPARE)
    return next(urgent, None) or next(iter(found), None)


def _sights(pod: Pod, snapshot: Snapshot) -> Iterator[Notice]:
    node = snapshot.nodes.get(pod.node)
    for sight in (*pod.sights, *(node.sights if node is not None else ())):
        by = _by(sight, pod, snapshot.now)
        if by is not None:
            yield Notice(
                sight.words,
                by,
                sight.signal.name,
                sight.signal.meaning,
                sight.signal.lead_s or GRACE_S,
                is_of_node=sight.signal.on.is_of_node,
            )


def _by(sight: Sight, pod: Pod, now: datetime) -> datetime | None:
    """When the worker is lost; None where it need not go. A time that has passed says nothing, because clocks differ and signals stay: the
    lead time counts from now then, and the first such moment stands in the status.
    """
    signal = sight.signal
    match signal.meaning:
        case Meaning.INFORM:
            return None
        case Meaning.GONE:
            return now
    lead = after(now, signal.lead_s)
    match signal.deadline:
        case Deadline.TOLERATION:
            seconds = tolerated_for(sight, pod.tolerations)
            if seconds is None:
                return None
            by = after(sight.taint_added or now, seconds)
            return by if by > now else after(now, GRACE_S)
        case Deadline.DELETION:
            return sight.by or lead
        case Deadline.VALUE | Deadline.LABEL:
            return min(sight.by, lead) if sight.by is not None and sight.by > now else lead
        case Deadline.LEAD:
            return lead
    return sight.by if sight.by is not None and sight.by > now else lead
