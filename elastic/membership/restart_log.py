"""The book of a job's restarts, which the rendezvous server and the controller keep in the same way: numbers by cause, and one by one those
that may be told of once more or turn out to have another cause. Each restart has an id that follows from what happened, so it counts once
whoever tells of it, however often and in whatever order. It knows neither budgets nor who writes the book down.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from elastic.membership.wire import Restart


@dataclass(frozen=True, slots=True)
class RestartLog:
    """`counts` holds every restart, those of `open` too. What ended a world before `generation` and is not in `open` has been counted."""

    counts: Mapping[str, int] = field(default_factory=dict)
    open: tuple[Restart, ...] = ()
    generation: int = 0

    def lost(self, pod: str) -> Restart | None:
        """The newest restart that the end of this pod's container belongs to, as long as it is not known how that ended."""
        return max((entry for entry in self.open if entry.lost and entry.pod == pod), key=lambda entry: entry.generation, default=None)


def merged(book: RestartLog, entries: Iterable[Restart]) -> RestartLog:
    """The book after hearing of these: new ones are counted, known ones only become more certain."""
    counts, known = Counter(book.counts), {entry.id: entry for entry in book.open}
    for entry in entries:
        before = known.get(entry.id)
        if before is None:
            if entry.generation < book.generation:
                continue
            counts[entry.cause] += 1
            known[entry.id] = entry
        elif (better := _surer(before, entry)) != before:
            counts[before.cause] -= 1
            counts[better.cause] += 1
            known[entry.id] = better
    return replace(book, counts={cause: counts[cause] for cause in sorted(counts) if counts[cause] > 0}, open=tuple(known.values()))


def _surer(before: Restart, now: Restart) -> Restart:
    """What is certain stays as it is: only a guess gives way, and only to knowledge."""
    cause = now.cause if before.unsure and not now.unsure else before.cause
    return structs.replace(before, cause=cause, lost=before.lost and now.lost, unsure=before.unsure and now.unsure)


def unknown_to(book: RestartLog, entries: Iterable[Restart]) -> tuple[Restart, ...]:
    """Those of the entries that would change the book."""
    known = {entry.id: entry for entry in book.open}

    def is_news(entry: Restart) -> bool:
        before = known.get(entry.id)
        return entry.generation >= book.generation if before is None else _surer(before, entry) != before

    return tuple(entry for entry in entries if is_news(entry))


def settled(book: RestartLog, *, generation: int, pods: Collection[str]) -> RestartLog:
    """The book once this generation is written down with it. Restarts that cannot be told of any more become mere numbers: kept are those
    of the newest world, and of each pod that may still be heard of the one that its container's end belongs to, or has counted for it.
    """
    newest = {entry.pod: entry.id for entry in sorted(book.open, key=lambda entry: entry.generation) if entry.lost and entry.pod in pods}

    def may_come_again(entry: Restart) -> bool:
        return entry.generation >= generation or newest.get(entry.pod) == entry.id or (entry.is_alone and entry.pod in pods)

    return replace(book, open=tuple(entry for entry in book.open if may_come_again(entry)), generation=generation)
