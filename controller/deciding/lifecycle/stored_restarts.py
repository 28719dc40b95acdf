"""Store a job's restart log in its status, in a bounded number of bytes.

Many restarts that differ only in their pods are stored as one entry. If the log is still too long, the oldest restarts of former worlds
leave the log but stay in the counts. If that is not enough, new restarts are left out, and the rendezvous server sends them again later.
So no restart is counted twice or forgotten.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import msgspec

from elastic.api.book import MOST_GROUPED, Restart
from elastic.api.job import ElasticStatus
from elastic.membership import wire
from elastic_training.controller.deciding.status_room import OPEN_BYTES
from elastic_training.rendezvous.engine.restart_log import RestartLog

ANY_POD = "*"
"""Stands for the pod's uid in the id of an entry that has `pods`."""
GROUPED_FROM = 256
"""Below this number each restart has its own entry, because former releases cannot read grouped entries."""


def log_of(status: ElasticStatus) -> RestartLog:
    return RestartLog(status.restarts, tuple(one for entry in status.open for one in _one_by_one(entry)), status.generation)


def _one_by_one(entry: Restart) -> Iterator[wire.Restart]:
    for pod in entry.pods or (entry.pod,):
        id = entry.id.replace(ANY_POD, pod, 1) if entry.pods else entry.id
        if len(id) > wire.LONGEST_RESTART_ID:
            continue  # the controller never writes such a long id, and the rendezvous server would refuse it
        yield wire.Restart(id=id, generation=entry.generation, cause=entry.cause, pod=pod, lost=entry.lost, unsure=entry.unsure)


def stored(restarts: Sequence[wire.Restart]) -> tuple[Restart, ...]:
    """Return the restarts as `status.elastic.open` holds them."""
    if len(restarts) < GROUPED_FROM:
        return tuple(map(_entry, restarts))
    groups: dict[Restart, list[str]] = {}
    alone = []
    for entry in restarts:
        if not entry.pod or ANY_POD in entry.id or entry.pod not in entry.id:
            alone.append(_entry(entry))
        else:
            groups.setdefault(_common(entry), []).append(entry.pod)
    return (*alone, *(part for common, pods in groups.items() for part in _parts(common, pods)))


def _entry(entry: wire.Restart) -> Restart:
    """Return the restart as an entry of the status. It has no `run`, because `counted` holds the runs."""
    return Restart(id=entry.id, generation=entry.generation, cause=entry.cause, pod=entry.pod, lost=entry.lost, unsure=entry.unsure)


def _common(entry: wire.Restart) -> Restart:
    """Return the part of the entry that is the same for all restarts that differ only in their pods."""
    id = entry.id.replace(entry.pod, ANY_POD, 1)
    return Restart(id=id, generation=entry.generation, cause=entry.cause, lost=entry.lost, unsure=entry.unsure)


def _parts(common: Restart, pods: Sequence[str]) -> Iterator[Restart]:
    for at in range(0, len(pods), MOST_GROUPED):
        yield msgspec.structs.replace(common, pods=tuple(pods[at : at + MOST_GROUPED]))


def bounded(log: RestartLog, *, before: RestartLog) -> RestartLog:
    """Return the log with as many restarts as the status has room for. `before` is the log that the status holds already."""
    if _fits(log.unsettled):
        return log
    settled = sorted((e for e in log.unsettled if e.generation < log.generation), key=lambda entry: (entry.lost, entry.generation))
    log = _without_first(log, settled, is_counted=True)
    known = {entry.id for entry in before.unsettled}
    new = [entry for entry in reversed(log.unsettled) if entry.id not in known]
    return log if _fits(log.unsettled) else _without_first(log, new, is_counted=False)


def _without_first(log: RestartLog, entries: Sequence[wire.Restart], *, is_counted: bool) -> RestartLog:
    """Return the log without the first n of these entries, with the smallest n that makes the log fit, or without all of them.

    If `is_counted`, the counts still include the removed entries.
    """

    def without(count: int) -> tuple[wire.Restart, ...]:
        gone = _ids(entries[:count])
        return tuple(entry for entry in log.unsettled if entry.id not in gone)

    count = bisect_left(range(len(entries)), True, key=lambda count: _fits(without(count)))
    left = replace(log, unsettled=without(count))
    if is_counted:
        return left
    counts = Counter(log.counts)
    counts.subtract(Counter(entry.cause for entry in entries[:count]))
    return replace(left, counts={cause: count for cause, count in counts.items() if count > 0})


def _ids(entries: Sequence[wire.Restart]) -> Collection[str]:
    return {entry.id for entry in entries}


def _fits(restarts: Sequence[wire.Restart]) -> bool:
    """Return whether the status and the rendezvous server's messages have room for these restarts."""
    return len(restarts) < GROUPED_FROM or (
        len(restarts) <= wire.MAX_UNSETTLED and len(msgspec.json.encode(stored(restarts))) <= OPEN_BYTES
    )
