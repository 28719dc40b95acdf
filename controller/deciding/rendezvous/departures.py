"""Decide which workers leave a world or its list of hosts, and when the pod of a leaving worker may be deleted.

The server and then the status learn of it in the same plan; a later plan deletes the pod, once a world works without the worker. A pod
whose node goes is deleted early enough to end in order, also without a replacement: no disruption budget holds up a deletion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastic.api.book import Leaving
from elastic.api.words import Cause
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.disruption import asked_to_leave, with_notice
from elastic_training.controller.deciding.rendezvous.deadlines import Deadlines, deadlines
from elastic_training.controller.deciding.status_room import with_leaving
from elastic_training.controller.facts.snapshot import Pod, PodPhase, Snapshot


@dataclass(frozen=True, slots=True)
class Departures:
    """The workers that leave, and those of their pods that may be deleted now. `later` leave once the status has room for them."""

    may_go: tuple[Pod, ...]
    leaving: tuple[Leaving, ...]
    later: tuple[Pod, ...] = ()


def still_leaving(view: JobView, known: Sequence[Leaving]) -> list[Leaving]:
    """Return the entries of `known` that still hold: the pod is the same one, and a notice that was the cause has not been withdrawn.

    A lost node or a failed pod withdraws no notice.
    """
    snapshot, noticed = view.snapshot, view.notices
    pods = _may_leave(snapshot)

    def stands(entry: Leaving, pod: Pod) -> bool:
        is_beyond = pod.node not in snapshot.nodes or pod.phase is PodPhase.FAILED
        return entry.cause == Cause.PLAN.value or entry.member in noticed or is_beyond

    return [e for e in known if (pod := pods.get(e.member)) is not None and pod.uid == e.uid and stands(e, pod)]


def _may_leave(snapshot: Snapshot) -> dict[str, Pod]:
    """Return, by name, the pods that can be leaving. A succeeded pod has not left, and a failed pod must still be removed."""
    return {pod.name: pod for pod in snapshot.pods if pod.phase is not PodPhase.SUCCEEDED}


def without_spared(snapshot: Snapshot, leaving: Sequence[Leaving], *, short: int) -> list[Leaving]:
    """Return the entries without surplus workers that stay after all, because `short` other workers were lost meanwhile."""
    here = {pod.name for pod in snapshot.pods if pod.is_active}
    spared = [entry for entry in leaving if entry.cause == Cause.PLAN.value and entry.member in here][: max(0, short)]
    return [entry for entry in leaving if entry not in spared]


def departures(view: JobView, leaving: Sequence[Leaving], *, surplus: Sequence[Pod]) -> Departures:
    """Add surplus workers and workers with a disruption notice to those that are leaving already.

    A worker's pod may be deleted once it has left the world, was never in it, or its time is up. The worker counts as leaving until its pod
    is gone or has succeeded, or until the notice is taken back, so that the end of that pod is never taken for a failure.
    """
    snapshot, policy = view.snapshot, view.job.elastic
    assert policy is not None
    by = snapshot.now + timedelta(seconds=policy.scale_in_grace_seconds)
    pods = _may_leave(snapshot)
    leaving = [with_notice(entry, view.notices.get(entry.member)) for entry in leaving]
    known = {entry.member: entry.asked_to_save for entry in leaving}
    new = [asked_to_leave(pods[name], notice) for name, notice in view.notices.items() if name not in known]
    new += [
        Leaving(member=pod.name, uid=pod.uid, cause=Cause.PLAN.value, by=by)
        for pod in surplus
        if pod.name in pods and pod.name not in known
    ]
    out = with_leaving(leaving, new)
    later = tuple(pods[entry.member] for entry in new[len(out) - len(leaving) :])
    until = deadlines(view, out)
    out = until.asked_to_save(out)
    stored = {entry.member for entry in out if entry.member in known and (known[entry.member] or not entry.asked_to_save)}
    may_go = [pods[entry.member] for entry in out if _may_go(pods[entry.member], entry, until, is_stored=entry.member in stored)]
    return Departures(tuple(may_go), out, later)


def _carries_world(pod: Pod, view: JobView) -> bool:
    """Return whether the world would have too few members without this pod.

    That happens if other members were lost, perhaps before our view of pods shows it. A scale-in can wait until they are replaced.
    """
    world, known = view.snapshot.world, view.status.elastic
    if world is None or world.phase != WorldPhase.RUNNING or pod.name not in world.members:
        return False
    leaving = {entry.member for entry in known.leaving} if known is not None else set()
    return len(world.members - leaving) < view.job.least_workers


def _may_go(pod: Pod, entry: Leaving, until: Deadlines, *, is_stored: bool) -> bool:
    """Return whether we may delete the pod. The cluster deletes the pods that it ends itself, unless they have failed already."""
    view = until.view
    if pod.is_deleting:
        return False
    if pod.phase is PodPhase.FAILED:
        return True
    if entry.cause == Cause.PLAN.value:
        by = None if _carries_world(pod, view) else entry.by
        return _has_left(pod, by, view.snapshot, is_stored=is_stored)
    notice = view.notices.get(entry.member)
    if notice is None or not notice.may_delete:
        return False
    return _has_left(pod, until.of(entry), view.snapshot, is_stored=is_stored)


def _has_left(pod: Pod, by: datetime | None, snapshot: Snapshot, *, is_stored: bool) -> bool:
    world = snapshot.world
    if not is_stored:
        return False  # the stored status must name it as leaving first, or the next controller would take its end for a disruption
    if by is not None and by <= snapshot.now:
        return True
    if pod.phase is not PodPhase.RUNNING and (world is None or pod.name not in world.members):
        return True  # a pod that looks pending and is in the world has begun meanwhile
    if world is not None and world.hosts is not None:
        hosts = world.hosts
        return pod.uid in hosts.leaving and pod.uid not in hosts.listed and pod.uid not in hosts.working
    return world is not None and world.phase == WorldPhase.RUNNING and pod.name not in world.members


def next_deadline(view: JobView, leaving: Sequence[Leaving]) -> datetime | None:
    """Return the next time at which a worker must be gone, or its pod is deleted. A time that has passed changes nothing any more."""
    now, until = view.snapshot.now, deadlines(view, leaving)
    moments = (*(until.of(entry) for entry in leaving), *(entry.by for entry in leaving))
    return min((at for at in moments if at is not None and at > now), default=None)
