"""Decide how long a replica waits that is lost again and again soon after it was made.

A crash, a deletion from outside, and a loss without a trace all count. The first losses in a row are replaced at once; after them each try
waits twice as long. Only lost replicas wait. The status (`status.elastic.replaced`) has the pods that were made lately and the number of
lost ones, so another controller waits as long.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import structs

from elastic.api import names
from elastic.api.book import MOST_KNOWN, MOST_TIMES, Made, Replacements
from elastic.api.job import ElasticStatus, Job, JobStatus, Object
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE
from elastic.api.words import RdzvBackend
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.end_reasons import is_refused
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.pauses import SKEW, next_pause_s, pause_end, start_of
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.facts.snapshot import LAUNCHER_INDEX, Pod, PodPhase, Snapshot, pod_from

FREE_TRIES = 3
"""Number of consecutive losses of one replica that are replaced without delay."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2, 300
RAN_WELL = timedelta(seconds=300)
"""A replacement that has lived for this long ends the loop of losses."""
LONGEST_MESSAGE = 300
STORE = "store"
"""Stands in for the type of the store pod, which has no type."""


def noted(job: Job, snapshot: Snapshot, status: JobStatus) -> JobStatus:
    """Return the status with each new loss of a pod that was made of late."""
    known = status.elastic or ElasticStatus()
    dated = (_dated(entry, snapshot.now) for entry in known.replaced if entry.type in (STORE, *job.replicas))
    entries = tuple(_with_losses(job, snapshot, entry) for entry in dated)
    return status if entries == known.replaced else structs.replace(status, elastic=structs.replace(known, replaced=entries))


def _dated(entry: Replacements, now: datetime) -> Replacements:
    return entry if entry.at is None else structs.replace(entry, at=start_of(entry.at, _pause_s(entry), now=now))


def _with_losses(job: Job, snapshot: Snapshot, entry: Replacements) -> Replacements:
    pods = _places(snapshot, entry.type)
    all_gone = [made for made in entry.made if _is_lost(pods.get(made.index))]
    gone = [made.index for made in all_gone if _is_young(made, snapshot.now)]
    # A date that is ahead because a clock stepped does not count, also once its time has come.
    left = tuple(made for made in entry.made if made.index not in gone and not (made in all_gone and made.at > snapshot.now + SKEW))
    if not gone:
        return entry if left == entry.made else structs.replace(entry, made=left)
    lost = [index for index in gone if not _was_refused(pods.get(index))]
    entry = structs.replace(_with_survivors(entry, pods, snapshot.now), made=left)
    if not lost:
        return entry
    most = min(MOST_KNOWN, max(1, job.replicas[entry.type].replicas)) if entry.type != STORE else 1
    return _counted(entry, lost, most=most, message=_what(job, entry.type, lost[-1], pods.get(lost[-1])), now=snapshot.now)


def _places(snapshot: Snapshot, type: str) -> dict[int, Pod]:
    """Return the pods of this type by index."""
    if type == STORE:
        store = next((pod_from(owned.raw) for owned in snapshot.owned if owned.kind == "Pod"), None)
        return {} if store is None else {LAUNCHER_INDEX: store}
    return {pod.index: pod for pod in snapshot.pods if pod.type == type.lower()}


def _is_young(made: Made, now: datetime) -> bool:
    return now - RAN_WELL < made.at <= now + SKEW


def _is_lost(pod: Pod | None) -> bool:
    return pod is None or pod.is_deleting or pod.phase is PodPhase.FAILED


def _was_refused(pod: Pod | None) -> bool:
    """Return whether a node refused the pod; creation_backoff slows such pods down."""
    return pod is not None and is_refused(pod)


def _what(job: Job, type: str, index: int, pod: Pod | None) -> str:
    name = names.pod_name(job.kind, job.metadata.name, type, index) if type != STORE else "the store pod"
    if pod is None:
        return f"{name} vanished"
    if pod.is_deleting:
        return f"{name} was deleted" + (f" ({pod.disruption})" if pod.disruption else "")
    ends = (f"{c.exit_reason or 'Error'}, exit code {c.exit_code}" for c in (*pod.inits, *pod.containers) if c.exit_code)
    return f"{name} failed: {pod.disruption or pod.exceeded or pod.reason or next(ends, 'no reason is given')}"


def _with_survivors(entry: Replacements, pods: Mapping[int, Pod], now: datetime) -> Replacements:
    """Return the entry without pods that are too old to tell; if one of these still works, earlier losses no longer count."""
    old = [made for made in entry.made if not _is_young(made, now)]
    if not old:
        return entry
    young = tuple(made for made in entry.made if made not in old)
    if any(not _is_lost(pods.get(made.index)) for made in old):
        return Replacements(type=entry.type, made=young)
    return structs.replace(entry, made=young)


def _counted(entry: Replacements, lost: Sequence[int], *, most: int, message: str, now: datetime) -> Replacements:
    """Count losses of replicas, one try after another.

    A replica that is lost again begins another try. If replicas are interchangeable, so does one loss more than there are replicas
    (`most`). Other losses at the same time, or while the try waits, belong to the same try.
    """
    if entry.at is not None and now - RAN_WELL > _end(entry):
        entry = Replacements(type=entry.type, made=entry.made)
    count, together = min(entry.count + len(lost), MOST_TIMES), tuple(sorted({*entry.lost, *lost})[:MOST_KNOWN])
    is_same_try = bool(entry.lost) and len(entry.lost) + len(lost) <= most and set(entry.lost).isdisjoint(lost)
    entry = structs.replace(entry, count=count, message=message[:LONGEST_MESSAGE])
    if is_same_try or _is_waiting(entry, now):
        return structs.replace(entry, lost=together)
    tries = min(entry.tries + 1, MOST_TIMES)
    pause_s = 0 if tries <= FREE_TRIES else next_pause_s(_pause_s(entry), first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
    return structs.replace(entry, tries=tries, at=now, pause_seconds=pause_s, lost=tuple(sorted(lost)[:MOST_KNOWN]))


def made_now(view: JobView, missing: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the missing replicas that do not wait. A group that restarts as a whole is created as a whole."""
    waiting = {entry.type: entry for entry in _waiting(view.status, view.snapshot.now)}
    if waiting and view.restarts_as_a_whole:
        return []
    is_by_count, places = view.backend is not RendezvousBackend.NONE, list(missing)
    for type, entry in waiting.items():
        beside = _beside(entry, [place for place in places if place[0] == type], is_by_count=is_by_count and type == WORKER)
        places = [place for place in places if place[0] != type or place in beside]
    return places


def _beside(entry: Replacements, places: list[tuple[str, int]], *, is_by_count: bool) -> list[tuple[str, int]]:
    """Return the places that are missing for another reason. If only the count matters, another index would replace a lost one."""
    if len(entry.lost) >= MOST_KNOWN:
        return []
    return places[len(entry.lost) :] if is_by_count else [place for place in places if place[1] not in entry.lost]


def with_made(view: JobView, known: ElasticStatus, made: Collection[tuple[str, int]], *, parted: Iterable[Pod]) -> ElasticStatus:
    """Return the status with the pods that this reconcile makes, except a job's first ones, and without the pods that we delete."""
    job, snapshot = view.job, view.snapshot
    entries, going = {entry.type: entry for entry in known.replaced}, {(pod.type, pod.index) for pod in parted}
    for type in (type for type in (*job.replicas, STORE) if type in _begun(job)):
        before, indexes = entries.get(type, Replacements(type=type)), {index for word, index in made if word == type}
        kept = tuple(one for one in before.made if one.index not in indexes and (type.lower(), one.index) not in going)
        new = tuple(Made(index=index, at=snapshot.now) for index in sorted(indexes))
        if kept + new != before.made:
            pods = _places(snapshot, type)
            entry = _with_survivors(structs.replace(before, made=kept), pods, snapshot.now)
            entries[type] = structs.replace(entry, made=(*entry.made, *new)[-MOST_KNOWN:])
    replaced = tuple(entry for entry in entries.values() if entry.made or entry.tries)
    return known if replaced == known.replaced else structs.replace(known, replaced=replaced)


def _begun(job: Job) -> Collection[str]:
    """Return the types that had pods before."""
    has_store = job.status.elastic is not None and job.status.elastic.backend == RdzvBackend.C10D.value
    return {*job.status.replica_statuses, STORE} if has_store else job.status.replica_statuses.keys()


def without_unmade(status: JobStatus, pods: Iterable[Object]) -> JobStatus:
    """Return the status without these pods: they could not be created, so they cannot be lost."""
    labels = [pod["metadata"]["labels"] for pod in pods]
    unmade = {(label.get(REPLICA_TYPE, STORE), int(label.get(REPLICA_INDEX, LAUNCHER_INDEX))) for label in labels}
    if not unmade or status.elastic is None or not status.elastic.replaced:
        return status
    entries = (
        structs.replace(entry, made=tuple(made for made in entry.made if (entry.type.lower(), made.index) not in unmade))
        for entry in status.elastic.replaced
    )
    replaced = tuple(entry for entry in entries if entry.made or entry.tries)
    return structs.replace(status, elastic=structs.replace(status.elastic, replaced=replaced))


def without_store(known: ElasticStatus) -> ElasticStatus:
    """Return the status once we delete the store pod ourselves: it was not lost."""
    return structs.replace(known, replaced=tuple(entry for entry in known.replaced if entry.type != STORE))


def vanished(view: JobView, type: str) -> int:
    """Return how many pods of this type were created recently, as the stored status says, and do not exist any more."""
    return len(_vanished(view, type))


def vanished_now(view: JobView, type: str) -> int:
    """Return how many of these vanished after the stored status was written. A status forgets each vanished pod once it has counted it."""
    return sum(_is_young(made, view.snapshot.now) for made in _vanished(view, type))


def _vanished(view: JobView, type: str) -> list[Made]:
    known, there = view.job.status.elastic or ElasticStatus(), _places(view.snapshot, type)
    return [made for entry in known.replaced if entry.type == type for made in entry.made if made.index not in there]


def holds_back(status: JobStatus, type: str, now: datetime) -> bool:
    return any(entry.type == type for entry in _waiting(status, now))


def next_try(status: JobStatus, now: datetime) -> datetime | None:
    return min((_end(entry) for entry in _waiting(status, now)), default=None)


def in_words(status: JobStatus, now: datetime, *, held: Collection[str]) -> Iterator[str]:
    """Say, for each of the types `held` that waits, how long it waits, until when, and why."""
    for entry in (entry for entry in _waiting(status, now) if entry.type in held):
        pods = (
            f"{entry.count} pods ({entry.type}) in a row were lost soon after they were created, the last one: {entry.message.rstrip('.')}."
        )
        yield f"{entry.pause_seconds} s, until {_end(entry):%H:%M:%S} UTC, to create pods again: {pods}"


def _waiting(status: JobStatus, now: datetime) -> Iterator[Replacements]:
    return (entry for entry in (status.elastic.replaced if status.elastic is not None else ()) if _is_waiting(entry, now))


def _is_waiting(entry: Replacements, now: datetime) -> bool:
    return entry.at is not None and pause_end(entry.at, _pause_s(entry), now=now) is not None


def _end(entry: Replacements) -> datetime:
    assert entry.at is not None
    return after(entry.at, _pause_s(entry))


def _pause_s(entry: Replacements) -> int:
    return min(entry.pause_seconds, LONGEST_PAUSE_S)
