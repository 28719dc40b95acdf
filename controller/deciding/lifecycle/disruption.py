"""Decide which pods must leave because of the signals that they and their nodes show (`elastic.signals.table`), and by when.

If there are several signals, the one with the least time counts as long as it is there. A plain cordon is no notice:
`replica_slots.wanted` says when it brings a replacement.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from msgspec import structs

from elastic.api.book import Announced, Leaving
from elastic.api.job import Job
from elastic.api.words import Cause
from elastic.signals.seen import Sight, tolerated_for
from elastic.signals.signal import Deadline, Meaning
from elastic_training.controller.deciding.moments import LAST, after
from elastic_training.controller.facts.snapshot import Pod, PodPhase, Snapshot

GRACE_S = 30.0
"""Seconds that the cluster gives a pod that must go, unless something says otherwise."""
MOST_OTHERS = 4
URGENCY = (Meaning.GONE, Meaning.LEAVE, Meaning.PREPARE)


@dataclass(frozen=True, slots=True)
class Notice:
    """A worker must go, or may have to: because of which signal, and by when at the latest."""

    signal: str
    """The name of the row of the table."""
    by: datetime
    meaning: Meaning = Meaning.LEAVE
    lead_s: float = GRACE_S
    """How long such a notice is."""
    is_of_node: bool = False
    """Its node goes. Otherwise the cluster ends the pod itself."""
    counts_from_sight: bool = False
    """The object does not say when: the time counts from the first sight, which the status keeps."""
    others: tuple[Announced, ...] = ()
    """Signals that leave more time, whose first sights must be kept, too."""

    @property
    def may_delete(self) -> bool:
        """Whether we may delete the pod. The cluster deletes the pods that it ends, and on a lost node a deletion changes nothing."""
        return self.is_of_node and self.meaning is not Meaning.GONE


def notices(snapshot: Snapshot, leaving: Iterable[Leaving] = ()) -> dict[str, Notice]:
    """Return, by pod name, the notice of each pod that must go or may have to. `leaving` holds the earlier notices."""
    known = {entry.uid: entry for entry in leaving if entry.cause == Cause.DISRUPTION.value}
    return {pod.name: notice for pod in snapshot.pods if (notice := _notice(pod, snapshot, known.get(pod.uid))) is not None}


def termination_grace_s(job: Job, type: str) -> float:
    """Return the seconds that the kubelet gives the pods of a replica type between SIGTERM and SIGKILL."""
    template = next((spec.template for name, spec in job.replicas.items() if name.lower() == type.lower()), {})
    seconds = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return float(seconds) if isinstance(seconds, int) and seconds >= 0 else GRACE_S


def with_notice(entry: Leaving, notice: Notice | None) -> Leaving:
    """Return the entry with the signal and the time of its newest notice."""
    if notice is None or entry.cause == Cause.PLAN.value:
        return entry
    return structs.replace(entry, by=notice.by, signal=notice.signal, others=notice.others)


def asked_to_leave(pod: Pod, notice: Notice) -> Leaving:
    return with_notice(Leaving(member=pod.name, uid=pod.uid, cause=Cause.DISRUPTION.value), notice)


def _notice(pod: Pod, snapshot: Snapshot, known: Leaving | None) -> Notice | None:
    """Return the most urgent notice, with the other signals that the status must keep."""
    first = _first_sights(known)
    found = [replace(one, by=first.get(one.signal, one.by)) if one.counts_from_sight else one for one in _sights(pod, snapshot)]
    if not found or not (pod.phase is PodPhase.RUNNING or _is_stillborn(pod, found, known)):
        return None
    notice = min(found, key=lambda one: (URGENCY.index(one.meaning), one.by))
    if known is not None and not notice.is_of_node and (pod.is_deleting or any(one.signal == known.signal for one in found)):
        # The end of the pod, by us or the cluster, is the disruption that was announced.
        notice = replace(notice, signal=known.signal)
    return replace(notice, others=tuple(_others(found, notice)))


def _is_stillborn(pod: Pod, found: Iterable[Notice], known: Leaving | None) -> bool:
    """Return whether the pod has not begun to run on a node that goes.

    A pod begins on a node that only may have to go. A pod that is being deleted for another reason is not disrupted.
    """
    goes = any(one.is_of_node and one.meaning is not Meaning.PREPARE for one in found)
    return goes and pod.phase is PodPhase.PENDING and (known is not None or not pod.is_deleting)


def _first_sights(known: Leaving | None) -> Mapping[str, datetime]:
    """Return the time of the loss by signal, counted from the first sight of each."""
    if known is None:
        return {}
    counting = {known.signal: known.by} if known.by is not None else {}
    return counting | {other.signal: other.by for other in known.others}


def _others(found: Iterable[Notice], notice: Notice) -> Iterator[Announced]:
    """Yield the first sights that the signal and the time of the notice do not say."""
    kept = sorted({(one.by, one.signal) for one in found if one.counts_from_sight and one.meaning is Meaning.LEAVE})
    others = [Announced(signal=signal, by=by) for by, signal in kept if (signal, by) != (notice.signal, notice.by)]
    yield from others[:MOST_OTHERS]


def _sights(pod: Pod, snapshot: Snapshot) -> Iterator[Notice]:
    node = snapshot.nodes.get(pod.node)
    for sight in (*pod.sights, *(node.sights if node is not None else ())):
        signal, time = sight.signal, _time(sight, pod, snapshot.now)
        if time is not None:
            yield Notice(
                signal.name,
                time[0],
                signal.meaning,
                signal.lead_s or GRACE_S,
                is_of_node=signal.on.is_of_node,
                counts_from_sight=time[1],
            )


def _time(sight: Sight, pod: Pod, now: datetime) -> tuple[datetime, bool] | None:
    """Return when the worker is lost, and whether that counts from the first sight; None if it need not go.

    A time that has passed says nothing, because clocks differ and signals stay; nor does that of a signal which was given in the future.
    """
    signal, stated, latest = sight.signal, sight.by, LAST
    match signal.meaning:
        case Meaning.INFORM:
            return None
        case Meaning.GONE:
            return now, True
    lead = after(now, signal.lead_s)
    match signal.deadline:
        case Deadline.TOLERATION:
            seconds = tolerated_for(sight, pod.tolerations)
            if seconds is None:
                return None
            stated = after(sight.taint_added, seconds) if sight.taint_added is not None else None
            lead = after(now, seconds if stated is None and seconds else GRACE_S)
        case Deadline.DELETION if stated is not None:
            return stated, False
        case Deadline.VALUE | Deadline.LABEL:
            latest = lead
    return (stated, False) if stated is not None and now < stated <= latest else (lead, True)
