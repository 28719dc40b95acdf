"""Send a job's world as a series of changes: the first line has the whole world, and each later line only the changed fields.

A line has few restarts, and a world with more of them takes several lines. So each line is short, and a controller gets each fact once.
Servers and controllers use these lines if both name version 1.2 of the messages or a later one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from elastic.membership.bounds import Generation, Name
from elastic.membership.codec import packed, struct_of, translated, unpacked
from elastic.membership.phases import WorldPhase
from elastic.membership.wire import MAX_UNSETTLED, Restart, Wire, WorldReport, unreadable
from elastic_training.rendezvous.engine.messages.bounds import Bound

MOST_RESTARTS = 256
"""Restarts of one line."""


class Restarts(Wire, frozen=True):
    """A change of a world's restarts.

    `job` names the job. `after` is the number of lines about the job since its whole world; 0 means that this line has the whole world. If
    `fresh`, all earlier restarts are void; `dropped` has the positions of single void ones. If there is `more`, another line about the job
    follows, and the world is complete only with that line.
    """

    job: Name
    after: Generation = 0
    fresh: bool = False
    dropped: Annotated[tuple[Annotated[int, Meta(ge=0, lt=MAX_UNSETTLED)], ...], Meta(max_length=MAX_UNSETTLED)] = ()
    more: bool = False


_FIELDS = tuple(field for field in structs.fields(struct_of(WorldReport)) if field.name not in ("job", "unacknowledged_restarts"))
"""The fields of a world that a change repeats as a whole."""

WorldChange: Any = msgspec.defstruct(
    "WorldChange",
    [
        ("added", translated(Annotated[tuple[Restart, ...], Bound(most=MOST_RESTARTS)]), ()),
        *((field.name, field.type | UnsetType, UNSET) for field in _FIELDS),
    ],
    bases=(Restarts,),
    module=__name__,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
)
"""A change of a world: that of its restarts, and the fields of World that have a new value.

added: restarts that follow the remaining ones.
"""


class Misfit(Exception):
    """A change does not follow the lines before it."""


def changes(before: WorldReport | None, now: WorldReport, *, after: int) -> Iterator[Any]:
    """Yield the lines that make `before` the world of now; none if nothing changed. Without `before`, they hold the whole world."""
    base = before if before is not None else _nothing(now.job)
    fields = {field.name: packed(getattr(now, field.name)) for field in _FIELDS if _is_news(field.name, base, now)}
    fresh, dropped, added = _restarts(base.unacknowledged_restarts, now.unacknowledged_restarts)
    if before is not None and not fields and not fresh and not dropped and not added:
        return
    first, rest = added[:MOST_RESTARTS], added[MOST_RESTARTS:]
    yield WorldChange(job=now.job, after=after, fresh=fresh, dropped=dropped, added=packed(first), more=bool(rest), **fields)
    while rest:
        after += 1
        first, rest = rest[:MOST_RESTARTS], rest[MOST_RESTARTS:]
        yield WorldChange(job=now.job, after=after, added=packed(first), more=bool(rest))


def applied(before: WorldReport | None, change: Any) -> WorldReport:
    """Return the world with this change. Raises Misfit if the change is of another one."""
    base = before if before is not None else _nothing(change.job)
    kept = () if change.fresh else base.unacknowledged_restarts
    if change.dropped:
        dropped = frozenset(change.dropped)
        if max(dropped) >= len(kept):
            raise Misfit(f"it drops restart {max(dropped)} of {len(kept)}")
        kept = tuple(entry for position, entry in enumerate(kept) if position not in dropped)
    if len(kept) + len(change.added) > MAX_UNSETTLED:
        raise Misfit(f"with it the job has more than {MAX_UNSETTLED} restarts")
    fields = {field.name: unpacked(value) for field in _FIELDS if (value := getattr(change, field.name)) is not UNSET}
    return replace(base, unacknowledged_restarts=(*kept, *unpacked(change.added)), **fields)


class ChangingWorlds:
    """Puts the worlds of one stream together from its lines."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[WorldReport, int]] = {}
        self._unreadable: set[str] = set()
        """Jobs of which a line could not be read: later changes say nothing."""

    def take(self, change: Any) -> WorldReport | None:
        """Return the job's world with this change; None if more lines belong to it. Raises Misfit if lines are missing."""
        job = change.job
        if not change.after:
            self._unreadable.discard(job)
            before, lines = None, 0
        elif job in self._unreadable:
            return None
        else:
            before, lines = self._known.get(job, (None, 0))
        if change.after != lines:
            raise Misfit(f"a change of job {job} follows {change.after} lines, and {lines} have come")
        world = applied(before, change)
        if world.forgotten:
            self._known.pop(job, None)
        else:
            self._known[job] = (world, lines + 1)
        return None if change.more else world

    def is_unreadable(self, job: str, why: str) -> WorldReport:
        """Take note that a line about this job cannot be read, and return the world that says so."""
        self._known.pop(job, None)
        self._unreadable.add(job)
        return unreadable(job, why)


def _nothing(job: str) -> WorldReport:
    return WorldReport(job=job, generation=0, phase=WorldPhase.EMPTY)


def _is_news(name: str, before: WorldReport, now: WorldReport) -> bool:
    """Return whether a field has a new value, or asks for something again. Ages do not count."""
    old, new = getattr(before, name), getattr(now, name)
    if name == "asks" and new:
        return True  # the controller may have answered since the last line, and the server may have dropped the job's state again
    if old is new:
        return False
    if name == "standing" and old is not None and new is not None and before.generation == now.generation:
        return bool(replace(old, age_s=new.age_s) != new)
    if name == "hang" and old is not None and new is not None:
        return bool(replace(old, ago_s=new.ago_s) != new)
    if name == "silent":
        return [member.name for member in old] != [member.name for member in new]
    return bool(old != new)


def _restarts(before: tuple[Restart, ...], now: tuple[Restart, ...]) -> tuple[bool, tuple[int, ...], tuple[Restart, ...]]:
    """Return whether to begin without restarts, the positions to drop otherwise, and the restarts to add."""
    if before is now or before == now:
        return False, (), ()
    wanted = {entry.id: entry for entry in now}
    kept = [entry for entry in before if wanted.get(entry.id) == entry]
    if not kept or tuple(kept) != now[: len(kept)]:
        return bool(before), (), now
    dropped = tuple(position for position, entry in enumerate(before) if wanted.get(entry.id) != entry)
    return False, dropped, now[len(kept) :]
