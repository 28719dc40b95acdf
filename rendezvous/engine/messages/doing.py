"""Messages about what workers do at this moment, since protocol 1.3. They serve to find out why training stands still.

The server asks with `View.watch`. The agents of all members then look at their workers every ten seconds, and say what they see.
"""

from __future__ import annotations

from typing import Annotated

from ..values import dataclass
from ..words import Word
from .bounds import Bound, Count, Generation, Rank, Seconds, Size

LOOK_S = 10.0
"""Seconds between two looks of an agent at its workers."""
STILL_LOOKS = 4
"""After so many looks at the same sight, which take 30 s, a worker counts as still."""
MOST_TOLD = 32
"""Workers of one member of which its agent speaks."""
MOST_GROUPS = 8
MOST_SPANS = 16
MOST_MEMBERS = 8

MOST_WORDS, MOST_CODE = 160, 80
Phrase = Annotated[str, Bound(most=MOST_WORDS)]


class DoingKind(Word):
    """The kind of thing that a worker does."""

    COLLECTIVE = "collective"  # it waits for other ranks
    STOPPED = "stopped"  # a signal or a debugger stopped its process
    OTHER = "other"
    UNKNOWN = "unknown"  # its Python stack cannot be read


@dataclass(frozen=True)
class Doing:
    """The activity of one worker.

    looks: how many looks in a row have seen the same; 1 if the last look saw something new. The same: the stacks of its Python threads and
    of its child processes, and, unless it waits for other ranks, no output and no other input or output of the process and its children.
    for_s: since the first of them; the worker may have begun long before. cpu: CPU seconds that the process and its children used in a
    second since the look before.
    does: a predicate in the third person that begins with a verb, such as "waits in all_reduce" or "sleeps". place: file and line of the
    program, such as "train.py:41". code: the text of that line.
    """

    kind: DoingKind
    looks: Count = 1
    for_s: Seconds = 0.0
    cpu: Seconds = 0.0
    does: Phrase = ""
    place: Phrase = ""
    code: Annotated[str, Bound(most=MOST_CODE)] = ""


@dataclass(frozen=True)
class Doings:
    """The activities of the workers of a member in this generation, by local rank. The newest message replaces the ones before it."""

    generation: Generation
    workers: Annotated[tuple[Doing, ...], Bound(most=MOST_TOLD)] = ()


class Watch(Word):
    """The request of the server to the agents, in a View."""

    NOT = ""
    LOOK = "look"  # look at the workers, and send Doings
    WRITE = "write"  # also write all their stacks to the log of the pod, once


class HangState(Word):
    """Why a job's steps do not come."""

    WAITING = "Waiting"  # no step has come for long, and nothing says that one will not
    SUSPECTED = "SuspectedHang"  # ranks wait for a rank that does not move, or all wait for each other


@dataclass(frozen=True)
class Span:
    """Ranks in a row."""

    first: Rank
    last: Rank


@dataclass(frozen=True)
class RanksDoing:
    """Ranks that do the same.

    members: those with the lowest of the ranks, in the order of their ranks. doing: of the rank that has done it for the shortest time.
    """

    spans: Annotated[tuple[Span, ...], Bound(most=MOST_SPANS)]
    count: Size
    members: Annotated[tuple[Annotated[str, Bound(most=253)], ...], Bound(most=MOST_MEMBERS)]
    doing: Doing

    @property
    def is_still(self) -> bool:
        """Return whether all looks of the last 30 s have seen the same."""
        return self.doing.looks >= STILL_LOOKS


@dataclass(frozen=True)
class Hang:
    """A job whose steps do not come, found `ago_s` seconds ago; the other times are of then.

    since_s: how long the last step was ago; if training reports none, for how long at least the ranks that stand still have done so.
    groups: the likely cause first.
    """

    state: HangState
    since_s: Seconds
    ago_s: Seconds = 0.0
    has_stepped: bool = False
    groups: Annotated[tuple[RanksDoing, ...], Bound(most=MOST_GROUPS)] = ()
