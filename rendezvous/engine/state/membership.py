"""Describe a job: its members, those that the controller expects, the current world, and the round that forms the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..messages.controller import Expectation
from ..messages.saves import Saves
from ..values import dataclass, field, replace
from ..words import Word


class MemberPhase(Word):
    """The place of a member."""

    BOOTING = "booting"  # present, not at the barrier, in no world
    READY = "ready"  # at the barrier
    RUNNING = "running"  # working in a world
    FINISHED = "finished"  # its workers ended with status 0


@dataclass(frozen=True)
class LeaveNotice:
    """By when a member must have left, and why. when_replaced: it may have to, and keeps its place until another takes it."""

    by: float
    cause: str
    when_replaced: bool = False


@dataclass(frozen=True)
class LeftLoop:
    """A worker left its training loop before the end of the training, and its process has yet to end.

    at: when. rank, error: the worker's, and the line of its exception, if known.
    """

    at: float
    rank: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Member:
    """One incarnation of a member. `world_id` is the world it is in, "" for none; `arrived` tells who came first."""

    name: str
    incarnation: str
    phase: MemberPhase
    heard_at: float
    arrived: int
    world_id: str = ""
    generation: int = 0
    store: str = ""
    broken_at: float | None = None
    has_left: bool = False
    """it had finished, and its agent has ended in good order"""
    workers: int = 0
    """How many workers it has that can enter another world without a restart; 0 if any of its workers cannot."""
    alive: bool = False
    """It is at the barrier, and its processes live."""
    provisional: bool = False
    """Its workers run in a world of their own, where they wait for a place in the job's world."""
    step: int | None = None
    """Step of the complete state that its processes hold at the barrier; None if they hold none, or it has not said."""
    left: LeftLoop | None = None
    """One of its workers has left the loop of the current world early."""
    saves: Saves = Saves()
    """The failing saves of its workers."""

    @property
    def pod(self) -> str:
        """The uid of its pod, with which the incarnation begins."""
        return pod_of(self.incarnation)


def pod_of(incarnation: str) -> str:
    """Return the uid of the pod in which this incarnation of a member runs."""
    return incarnation.partition("/")[0]


@dataclass(frozen=True)
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
    lost_state: bool = False
    """the world before had the state of training, and none of its holders is in this world"""
    killed: int = 0
    """Workers of the world before that did not stop within their grace."""
    rung: str = ""
    """The way in which the processes of the previous world came into this world (Rung); empty in the first world."""
    began_unseen: bool = False
    """this server never saw the world before at work, so it cannot tell for how long training stood still"""

    @property
    def size(self) -> int:
        return len(self.by_rank)

    def with_member_at(self, rank: int, name: str | None) -> CurrentWorld:
        """Return the same world with another member at one rank."""
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


@dataclass(frozen=True)
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
    in_place: bool = False
    """whether the processes live on"""
    killed: int = 0
    """how many workers did not stop within their grace"""


@dataclass(frozen=True)
class Membership:
    """The members of a job, those that the controller expects, and the worlds that they form."""

    expectation: Expectation | None = None
    expected: Mapping[str, None] = field(default_factory=dict)
    """the names of the expectation, in its order"""
    notices: Mapping[str, LeaveNotice] = field(default_factory=dict)
    """the controller's, by member"""
    members: Mapping[str, Member] = field(default_factory=dict)
    arrivals: int = 0
    """how many members have come so far"""
    retired: tuple[tuple[str, str], ...] = ()
    """(member, incarnation) pairs that a newer incarnation replaced"""
    generation: int = 0
    """the highest one known, below which no world may be numbered"""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Expected members that were dropped and have not come back, and when each was last heard."""
    world: CurrentWorld | None = None
    started: frozenset[str] = frozenset()
    """the members of the current world whose workers run"""
    warm: frozenset[str] = frozenset()
    """those of `started` whose workers a fork server started"""
    finished: frozenset[str] = frozenset()
    """the members of the current world whose workers have ended with 0, even if their agents are gone"""
    round: Round | None = None

    @property
    def min(self) -> int:
        return self.expectation.min if self.expectation is not None else 1

    @property
    def max(self) -> int:
        return self.expectation.max if self.expectation is not None else 0

    @property
    def grace_s(self) -> float:
        return self.expectation.grace_s if self.expectation is not None else 30.0

    @property
    def is_draining(self) -> bool:
        """Whether the members of the current world are called to the barrier."""
        return self.round is not None and self.round.draining

    def survives(self, name: str) -> bool:
        """Return whether this member is here and has been in the current world, in this incarnation."""
        world, member = self.world, self.members.get(name)
        return world is not None and member is not None and name in world.ranks and member.generation == world.generation

    @property
    def unknown_ranks(self) -> int:
        """How many members of a rebuilt world have not presented themselves yet."""
        return sum(1 for name in self.world.by_rank if name is None) if self.world is not None else 0

    @property
    def last_at_work(self) -> str:
        """The only member of the current world whose workers have not ended with 0; "" if there are several."""
        world = self.world
        if world is None or world.size == 1 or len(self.finished) != world.size - 1:
            return ""
        return next((name for name in world.ranks if name not in self.finished), "")

    def in_world(self, world: CurrentWorld | None) -> Membership:
        """Return the same members in another world, or in none, in which none of them has started or finished yet."""
        return replace(self, world=world, started=frozenset(), warm=frozenset(), finished=frozenset())

    def with_member(self, member: Member) -> Membership:
        return replace(self, members={**self.members, member.name: member})

    def without(self, name: str) -> Membership:
        members = dict(self.members)  # copied as a whole: thousands may leave at once
        members.pop(name, None)
        return replace(self, members=members)

    def change(self, name: str, **changes: Any) -> Membership:
        """Return the same members with one of them changed."""
        return self.with_member(replace(self.members[name], **changes))
