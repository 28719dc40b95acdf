"""The state of one job's membership. Values only: who is here, which world is current, which round is forming, what was charged.

`now` in these values is the caller's monotonic clock; nothing here is ever compared with another host's time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from elastic.membership.restart_log import RestartLog
from elastic.membership.window import Dates
from elastic.membership.wire import Budget, Expectation, Restart


class Phase(StrEnum):
    """Where a member stands."""

    BOOTING = "booting"  # present, not at the barrier, in no world
    READY = "ready"  # at the barrier
    RUNNING = "running"  # working in a world
    FINISHED = "finished"  # its workers ended with status 0


class Cause(StrEnum):
    """Why a worker ended, or why a world changed."""

    START = "start"
    PLAN = "plan"
    DISRUPTION = "disruption"
    COLLATERAL = "collateral"
    OUT_OF_MEMORY = "outOfMemory"
    HANG = "hang"
    USER = "user"


CHARGED = frozenset({Cause.USER, Cause.OUT_OF_MEMORY, Cause.HANG})
"""Causes that count against maxRestarts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The waits of a job, in seconds. Each is the longest time that the machine gives somebody before it goes on without."""

    straggler_s: float = 5.0
    """for expected members that are not here yet, once enough are"""
    return_s: float = 1.0
    """for a broken connection to come back"""
    settle_s: float = 15.0
    """after the server's start, before silence counts as absence"""
    silence_s: float = 19.0
    """without a beat on a connection that is open"""
    peers_s: float = 1.0
    """after a worker's failure, for its peers to end by themselves: it may be that they were just finishing"""
    drain_s: float = 10.0
    """for a running member to come to the barrier, beyond its grace"""
    late_s: float = 30.0
    """after the work is done, for expected members that did not take part in its end, to come, hear of it, and go"""
    cut_off_s: float = 600.0
    """after the work is done, for a member of the world whose connection was lost: it may still work"""
    progress_s: float = 300.0
    """of life, after which a world has got somewhere, where training never tells of its steps"""


@dataclass(frozen=True, slots=True)
class LeaveNotice:
    """By when a member must have left, and why. when_replaced: it may have to, and keeps its place until another takes it."""

    by: float
    cause: str
    when_replaced: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a member. `world_id` is the world it is in, "" for none; `arrived` tells who came first."""

    name: str
    incarnation: str
    phase: Phase
    heard_at: float
    arrived: int
    world_id: str = ""
    generation: int = 0
    store: str = ""
    broken_at: float | None = None
    notice: LeaveNotice | None = None
    """the member's own, such as of a reclaimed node"""
    has_left: bool = False
    """it had finished, and its agent has ended in good order"""


@dataclass(frozen=True, slots=True)
class CurrentWorld:
    """The current world. `by_rank[rank]` is a member's name, or None where a restarted server has not heard from that rank yet."""

    id: str
    generation: int
    by_rank: tuple[str | None, ...]
    store: str
    reason: str
    cause: str
    since: float = 0.0
    adopted: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    heirs: frozenset[str] | None = None
    """the members that came with the state of training; None where that is not known"""

    @property
    def size(self) -> int:
        return len(self.by_rank)

    def with_member_at(self, rank: int, name: str | None) -> "CurrentWorld":
        """The same world with another member at one rank."""
        by_rank = (*self.by_rank[:rank], name, *self.by_rank[rank + 1 :])
        ranks = dict(self.ranks)  # copied as a whole: thousands may present themselves at once
        if (former := self.by_rank[rank]) is not None:
            del ranks[former]
        if name is not None:
            ranks[name] = rank
        return replace(self, by_rank=by_rank, ranks=ranks)


def ranks_of(by_rank: tuple[str | None, ...]) -> Mapping[str, int]:
    """Name to rank, for the ranks whose members are known."""
    return {name: rank for rank, name in enumerate(by_rank) if name is not None}


@dataclass(frozen=True, slots=True)
class Round:
    """The forming of the next world. While it gathers, the members of the current world work on; once it drains, they come."""

    reason: str
    cause: str
    began: float
    draining: bool
    until: float
    """when it stops waiting: gathering for expected newcomers, draining for members that do not come"""
    notified_at: float | None = None
    """when its members were notified"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's own end, not judged yet. is_gone: its agent went as well; rank, error: of the worker and its exception, where known."""

    member: str
    pod: str
    status: int | None
    at: float
    is_gone: bool = False
    rank: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """A member that the current world lost to something other than its worker's failure, not judged yet. is_gone: it left, and perhaps
    its container ended; unsure: the controller may know a better cause; may_work: nothing but a connection tells that it is gone.
    """

    member: str
    pod: str
    cause: str
    words: str
    is_gone: bool = False
    unsure: bool = False
    may_work: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training has come, as its reports say."""

    step: int | None = None
    """the highest step ever reported; None where training reports none"""
    step_at_restart: int | None = None
    """what `step` was when the world broke last: a step beyond it is one forward"""
    fruitless: int = 0
    """restarts in a row without a step forward"""
    step_in_world: int | None = None
    """the highest step reported in the current world"""
    moved_at: float = 0.0
    """when `step_in_world` rose last, or the world began"""


@dataclass(frozen=True, slots=True)
class Phases:
    """When the steps of the newest rescale happened, on the machine's clock."""

    first_sign: float
    """the first sign of it: a connection broke, a member fell silent, a newcomer arrived, the controller spoke"""
    detected: float
    notified: float
    drained: float
    sealed: float
    started: float | None = None
    stepped: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Everything the machine knows about one job."""

    uid: str
    instance: str
    """the server's own random name, part of every world's id"""
    up_since: float
    now: float
    limits: Limits = field(default_factory=Limits)
    patient_until: float = 0.0
    """after the server stood still or was cut off: until then nobody counts as absent"""
    reached_at: float = math.inf
    """when the controller last gave a sign"""
    doubt_since: float | None = None
    """since when the server must take itself for cut off, and decides nothing"""
    first_doubt_at: float | None = None
    """when it first did so, as long as any member is silent"""
    expectation: Expectation | None = None
    expected: Mapping[str, None] = field(default_factory=dict)
    """the names of the expectation, in its order"""
    notices: Mapping[str, LeaveNotice] = field(default_factory=dict)
    """the controller's, by member"""
    members: Mapping[str, Member] = field(default_factory=dict)
    retired: tuple[tuple[str, str], ...] = ()
    """(member, incarnation) pairs that a newer incarnation replaced"""
    world: CurrentWorld | None = None
    unacknowledged_restarts: tuple[Restart, ...] = ()
    """restarts that the controller may not have recorded: members of the current world hold them for the next server"""
    round: Round | None = None
    generation: int = 0
    arrivals: int = 0
    min_reached_at: float | None = None
    failures: tuple[Failure, ...] = ()
    losses: tuple[Loss, ...] = ()
    trouble: tuple[str, str] | None = None
    """the first thing that broke the current world: words and cause"""
    explained: Mapping[str, None] = field(default_factory=dict)
    """ends (pod uid/run) that the controller reported and that are taken into account"""
    recorded: RestartLog = field(default_factory=RestartLog)
    """the restarts that the controller has recorded in the job's status"""
    known_restarts: Mapping[str, Restart] = field(default_factory=dict)
    """by id, the restarts that this server knows of itself, or from members that hold a world"""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """what both come to, by cause"""
    restart_dates: Dates = ()
    """the restarts within the budget's window, where it has one"""
    progress: Progress = field(default_factory=Progress)
    hang_reason: str = ""
    """in words, where training stands still in the current world"""
    first_sign_at: float | None = None
    """when the first sign of the next change was there"""
    started: frozenset[str] = frozenset()
    finished: frozenset[str] = frozenset()
    """the members of the current world whose workers have ended with 0, whatever became of their agents since"""
    phases: Phases | None = None
    closed: str = ""
    done_at: float | None = None
    """since when the work is done"""
    is_complete: bool = False
    """the work is done, and nobody is waited for any more"""

    @property
    def is_done(self) -> bool:
        """Whether no further world follows because the work is done."""
        return self.done_at is not None

    @property
    def last_at_work(self) -> str:
        """The one member of the current world whose workers have not ended with 0, where those of all others have."""
        world = self.world
        if world is None or world.size == 1 or len(self.finished) != world.size - 1:
            return ""
        return next((name for name in world.ranks if name not in self.finished), "")

    @property
    def min(self) -> int:
        return self.expectation.min if self.expectation is not None else 1

    @property
    def max(self) -> int:
        return self.expectation.max if self.expectation is not None else 0

    @property
    def budget(self) -> Budget:
        return self.expectation.budget if self.expectation is not None else Budget()

    @property
    def is_settled(self) -> bool:
        """Whether silence may count as absence.

        It may not while members of a world that an earlier server sealed may still be on their way back to this one.
        """
        if self.world is not None and not self.world.adopted:
            return True
        if self.world is None and self.expectation is not None and self.generation == 0:
            return True  # the job never had a world
        return self.now >= self.up_since + self.limits.settle_s

    @property
    def may_tell_end(self) -> bool:
        """Whether members may hear that the group has ended: not before that is written down, for they hold what a new server must know."""
        return bool(self.closed) and self.expectation is not None and bool(self.expectation.closed)

    def with_member(self, member: Member) -> "Job":
        return replace(self, members={**self.members, member.name: member})

    def without(self, name: str) -> "Job":
        members = dict(self.members)  # copied as a whole: thousands may leave at once
        members.pop(name, None)
        return replace(self, members=members)

    def change(self, name: str, **changes: Any) -> "Job":
        """The same job with one member changed."""
        return self.with_member(replace(self.members[name], **changes))
