"""Keep a job's restart log in the same way in rendezvous server and controller: counts by cause, and the unsettled restarts.

An unsettled restart may be reported again or change its cause. The id of a restart follows from what happened, so it counts once: the
reporter, the number of reports and their order do not matter. The log knows neither budgets nor where it is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from .messages.bounds import MOST_COUNTED
from .messages.controller import Restart
from .values import dataclass, field, replace


@dataclass(frozen=True)
class RestartLog:
    """`counts` includes the `unsettled` restarts. Restarts before `generation` that are not unsettled are settled, and are counted."""

    counts: Mapping[str, int] = field(default_factory=dict)
    unsettled: tuple[Restart, ...] = ()
    generation: int = 0

    def lost(self, pod: str) -> Restart | None:
        """Return the newest restart that waits for a report of this pod's end; None if no restart waits."""
        return max((entry for entry in self.unsettled if entry.lost and entry.pod == pod), key=lambda entry: entry.generation, default=None)


def merged(log: RestartLog, entries: Iterable[Restart]) -> RestartLog:
    """Return the log with these entries. Count new entries; change a known entry only from a guess to a known cause."""
    counts, known = Counter(log.counts), {entry.id: entry for entry in log.unsettled}
    for entry in entries:
        before = known.get(entry.id)
        if before is None:
            if entry.generation < log.generation:
                continue
            counts[entry.cause] += 1
            known[entry.id] = entry
        elif (better := _more_certain(before, entry)) != before:
            counts[before.cause] -= 1
            counts[better.cause] += 1
            known[entry.id] = better
    kept = {cause: min(counts[cause], MOST_COUNTED) for cause in sorted(counts) if counts[cause] > 0}
    return replace(log, counts=kept, unsettled=tuple(known.values()))


def _more_certain(before: Restart, now: Restart) -> Restart:
    """Return the entry with the more certain cause: only a known cause replaces a guess."""
    cause = now.cause if before.unsure and not now.unsure else before.cause
    better = replace(before, cause=cause, lost=before.lost and now.lost, unsure=before.unsure and now.unsure)
    return replace(better, run=now.run) if better != before else before


def unknown_to(log: RestartLog, entries: Iterable[Restart]) -> tuple[Restart, ...]:
    """Return the entries that would change the log."""
    known = {entry.id: entry for entry in log.unsettled}

    def is_unknown(entry: Restart) -> bool:
        before = known.get(entry.id)
        return entry.generation >= log.generation if before is None else _more_certain(before, entry) != before

    return tuple(entry for entry in entries if is_unknown(entry))


def settled(log: RestartLog, *, generation: int, pods: Collection[str]) -> RestartLog:
    """Return the log after it is stored with this generation. Restarts that cannot be reported again remain only in the counts.

    The log keeps the restarts of the newest world. For each pod that may still be reported, it also keeps the restart that waits for the
    end of the pod's container, and the restart that ended a container outside any world.
    """
    newest = {
        entry.pod: entry.id for entry in sorted(log.unsettled, key=lambda entry: entry.generation) if entry.lost and entry.pod in pods
    }

    def may_be_reported(entry: Restart) -> bool:
        return entry.generation >= generation or newest.get(entry.pod) == entry.id or (entry.is_alone and entry.pod in pods)

    return replace(log, unsettled=tuple(entry for entry in log.unsettled if may_be_reported(entry)), generation=generation)
