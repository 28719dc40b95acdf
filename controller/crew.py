"""Decides who should be there now: for each replica type the places that are filled or to be filled, and the pods to part with.
At our own rendezvous any indexes will do and leavers are told first; everywhere else a place is a rank and is filled again as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller import disruption, group, membership, places, regroup, resize
from controller.actions import Tell
from controller.frameworks import FRAMEWORKS
from controller.pods import replica_name
from controller.snapshot import Pod, Snapshot
from elastic.api.job import Job, Leaving
from elastic.api.kinds import WORKER

Place = tuple[str, int]
"""A replica type and an index."""


@dataclass(frozen=True, slots=True)
class Crew:
    """`places` are filled or about to be, `missing` are to fill, `parted` are pods that may go now, `leaving` all that were told to."""

    places: tuple[Place, ...] = ()
    missing: tuple[Place, ...] = ()
    parted: tuple[Pod, ...] = ()
    leaving: tuple[Leaving, ...] = ()
    told: tuple[Tell, ...] = ()


def crew_of(job: Job, snapshot: Snapshot, known: Sequence[Leaving]) -> Crew:
    """`known` are those that were told to leave before."""
    may_start = regroup.may_start(job, snapshot)
    pods = {type: [pod for pod in snapshot.pods if pod.type == type.lower()] for type in job.replicas}
    if group.is_waiting(job, snapshot):
        return Crew(places=tuple((type, pod.index) for type, found in pods.items() for pod in found))
    framework = FRAMEWORKS[job.kind.name]
    parts = [_part(job, snapshot, known, pods[type], type=type) for type in job.replicas]
    return Crew(
        places=tuple(place for part in parts for place in part.places),
        missing=tuple(p for part in parts for p in part.missing if may_start and framework.may_start(job, p[0], snapshot.pods)),
        parted=tuple(pod for part in parts for pod in part.parted),
        leaving=tuple(entry for part in parts for entry in part.leaving),
        told=tuple(told for part in parts for told in part.told),
    )


def _part(job: Job, snapshot: Snapshot, known: Sequence[Leaving], pods: Sequence[Pod], *, type: str) -> Crew:
    """What becomes of one replica type; who may be missed is for the place to say where the group meets."""
    if type == WORKER and membership.is_ours(job, snapshot):
        return _members(job, snapshot, known, pods)
    staff = places.of_workers(job, snapshot) if type == WORKER else resize.in_places(job.replicas[type].replicas, pods)
    return Crew(places=_places(type, staff), missing=tuple((type, index) for index in staff.missing), parted=staff.surplus)


def _members(job: Job, snapshot: Snapshot, known: Sequence[Leaving], pods: Sequence[Pod]) -> Crew:
    count = job.workers + disruption.to_be_moved(job, snapshot)
    noticed = set(disruption.notices(snapshot))
    still = membership.still_leaving(snapshot, known)
    short = count - len(resize.who_stay(pods, leaving={entry.member for entry in still} | noticed))
    still = membership.without_spared(snapshot, still, short=short)
    gone = {entry.member for entry in still} | noticed
    staff = resize.by_count(count, pods, leaving=gone)
    departures = membership.departures(job, snapshot, still, surplus=staff.surplus)
    coming = [replica_name(job, WORKER, index) for index in staff.missing]
    told = membership.tell(job, snapshot, staying=staff.present, coming=coming, leaving=departures.leaving)
    missing = tuple((WORKER, index) for index in staff.missing)
    return Crew(_places(WORKER, staff), missing, departures.may_go, departures.leaving, (told,))


def _places(type: str, staff: resize.Staff) -> tuple[Place, ...]:
    return tuple((type, index) for index in (*(pod.index for pod in staff.present), *staff.missing))
