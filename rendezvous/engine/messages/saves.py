"""Messages about saves that fail while training goes on, since protocol 1.5."""

from __future__ import annotations

from typing import Annotated

from ..values import dataclass
from .bounds import MAX_ERROR, MAX_MEMBERS, Bound, Count, Step

MOST_FAILING = 8
"""Workers of one member, and of one job, of which anybody speaks."""
LASTING = 3
"""Failures in a row from which on the trouble counts as lasting. Agents speak of it at the first failure and at this one."""
WHY = Annotated[str, Bound(most=MAX_ERROR)]


@dataclass(frozen=True)
class FailedSave:
    """A save of a worker that failed. last: the step of the last complete save; None if none is known. failures: how many in a row."""

    local_rank: Count
    step: Step
    words: WHY = ""
    last: Step | None = None
    failures: Count = 1


@dataclass(frozen=True)
class Saves:
    """The workers of a member whose newest save failed, of so many workers. The newest message replaces the ones before it."""

    failed: Annotated[tuple[FailedSave, ...], Bound(most=MOST_FAILING)] = ()
    workers: Annotated[int, Bound(least=1, most=MAX_MEMBERS)] = 1


@dataclass(frozen=True)
class FailingRank:
    """A rank whose saves fail, as the controller hears of it."""

    rank: Annotated[int, Bound(least=0, most=2**31)]
    member: Annotated[str, Bound(most=253)]
    save: FailedSave
