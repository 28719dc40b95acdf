"""Tell one history to the engine at the server and to the engine at the members of an etcd.

Events come in batches. After each batch both engines get the time to come to rest, and are compared. Differences of
the transport, such as how soon a death is noticed, do not show at rest.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from etcd_agents import Job
from rendezvous_group import Group

from elastic.membership import wire
from elastic.membership.wire import Budget, Expectation
from elastic_training.rendezvous.engine.choose import absent, state_holders
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.state.membership import MemberPhase
from elastic_training.rendezvous.engine.words import Cause
from elastic_worker.etcd.hosting import job_of
from elastic_worker.etcd.records import MEMBERS, Leaving, World

REST_S = 45
"""Longer than every wait of both engines: grace and drain (15 s), leases (5 s), stragglers (5 s), silence (19 s), late members (30 s)."""


@dataclass(frozen=True)
class Said:
    """Expectation of the controller, in words that both engines know."""

    members: tuple[str, ...]
    pending: tuple[str, ...] = ()
    leaving: tuple[tuple[str, str, bool], ...] = ()
    """Member, cause, and whether it keeps its place until it is replaced."""
    newcomers: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    min: int = 1
    max: int = 4
    sizes: tuple[int, ...] = ()
    max_restarts: int | None = None
    without_progress: int | None = None
    hang_s: float | None = None
    state_s: float = 5.0

    def to_server(self) -> Expectation:
        return Expectation(
            members=self.members,
            pending=self.pending,
            leaving=tuple(wire.LeaveOrder(member=name, by_s=600.0, cause=cause, when_replaced=may) for name, cause, may in self.leaving),
            newcomers=self.newcomers,
            finished=self.finished,
            min=self.min,
            max=self.max,
            sizes=self.sizes,
            budget=Budget(max_restarts=self.max_restarts, without_progress=self.without_progress, hang_s=self.hang_s),
            grace_s=5.0,
            state_s=self.state_s,
        )

    def to_etcd(self) -> dict[str, Any]:
        return {
            "pending": self.pending,
            "leaving": tuple(Leaving(name, cause, 600.0, may) for name, cause, may in self.leaving),
            "newcomers": self.newcomers,
            "finished": self.finished,
            "min": self.min,
            "max": self.max,
            "sizes": self.sizes,
            "max_restarts": self.max_restarts,
            "without_progress": self.without_progress,
            "hang_s": self.hang_s,
            "grace_s": 5.0,
            "state_s": self.state_s,
        }


@dataclass(frozen=True)
class Rest:
    """State of an engine at rest."""

    ranks: dict[str, int]
    """Ranks of the members that work and that nobody has called."""
    restarts: dict[str, int]
    cause: str
    """Why the newest world was formed."""
    holders: frozenset[str]
    absent: tuple[str, ...]
    fruitless: int
    is_done: bool
    is_closed: bool
    waiting: frozenset[str]
    """Members at the barrier."""


@dataclass
class Pair:
    """Both engines with the same agents."""

    said: Said
    group: Group = field(default_factory=Group)
    job: Job = field(init=False)
    over: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.job = Job(grace_s=5.0, needs_controller=True)
        self.job.hosts.are_there = True
        self.expect(self.said)

    def close(self) -> None:
        for agent in [*self.job.agents.values(), *self.job.ended]:
            agent.presence.close()

    # --- events, told to both

    def expect(self, said: Said, *, as_said: bool = False) -> None:
        """Let the controller speak. Unless `as_said`, it repeats what it said of members that the current world has lost."""
        self.said = said = said if as_said else self._with_lost(said)
        self.group.expectation = said.to_server()
        self.group.retell()
        self.job.expect(*said.members, **said.to_etcd())

    def tell(self, batch: "Said | list[tuple[str, Any]]") -> None:
        """Let the controller speak, or this happen at once: each entry is an event with its member, or with a step."""
        self._send_home()
        if isinstance(batch, Said):
            self.expect(batch)
            return
        for what, which in batch:
            if self.at_server().ranks != (self.in_etcd().ranks if self.job.agents else {}):
                self.rest(3)  # one engine has noticed a death before the other
            if what in ("kill", "leave", "start") and self._has_broken_world(which):
                continue
            if what == "trouble":
                self.come(which, "its store was lost")
            elif what == "die":
                self.kill(which)
            else:
                getattr(self, what)(which)
            self._obey()

    def start(self, *names: str) -> None:
        for name in names:
            if name in self.over:
                continue  # a controller replaces no worker that has finished
            self.kill(name)
            self.job.etcd.remove(MEMBERS + name)  # as its lease would: the key of the new incarnation is younger than its peers' keys
            self.group.start(name, pod=f"{name}-{self.group.starts}")
            self.job.start(name)
            self.job.turn(1)

    def kill(self, name: str) -> None:
        if name in self.job.agents:
            self.group.kill(name)
            self.job.end(name)

    def leave(self, name: str) -> None:
        if name in self.job.agents:
            self.group.leave(name)
            self.job.end(name, politely=True)

    def fail(self, name: str) -> None:
        if self._is_working(name):
            self.group.fail(name)
            self.job.agents[name].fail()

    def come(self, name: str, trouble: str = "") -> None:
        """Come to the barrier, uncalled."""
        if self._is_working(name):
            self.group.come(name, trouble=trouble)
            self.job.agents[name].come(trouble)

    def finish(self, name: str) -> None:
        if self._is_working(name):
            self.group.finish(name)
            self.over.add(name)
            self.job.agents[name].presence.report_state("finished", generation=self.job.agents[name].generation)

    def step(self, step: int) -> None:
        """Let all working agents report this step."""
        working = [name for name in self.job.agents if self._is_working(name)]
        if working:
            self.group.started(*working)
            self.group.apply(Stepped(self.group.agents[working[0]].generation, step))
            for name in working:
                self.job.agents[name].step(step)

    def rest(self, seconds: int = REST_S) -> None:
        """Let time pass until both engines are at rest; agents do what they are asked."""
        self.group.retell()
        for _ in range(seconds):
            self.group.advance(1.0)
            self.group.come_all()
            self._report_started()
            self.job.etcd.advance(1.0)
            self.job.turn(1)
            self.job.come_all()
        self.job.turn(2)

    def _send_home(self) -> None:
        """Let the members at the barrier go if the work is done: both engines have told them so."""
        if self.job.agents and self.at_server().is_done:
            for name in [one.name for one in self.job.agents.values() if one.is_ready]:
                self.group.leave(name)
                self.job.end(name, politely=True)
            self.rest(1)

    def _with_lost(self, said: Said) -> Said:
        """Keep what the controller said of members that the current world has lost: the next world judges their loss by it."""
        world = self.job.world()
        present = {name: self.job.member(name) for name in self.job.agents}
        here = {name: record.incarnation for name, record in present.items() if record is not None}
        lost = {seat.name for seat in world.seats if here.get(seat.name) != seat.incarnation} if world is not None else set()
        members = {name for name in said.members if name not in lost} | lost.intersection(self.said.members)
        leaving = [one for one in said.leaving if one[0] not in lost] + [one for one in self.said.leaving if one[0] in lost]
        return replace(said, members=tuple(sorted(members)), leaving=tuple(sorted(leaving)), hang_s=self.said.hang_s)

    def _has_broken_world(self, name: str) -> bool:
        """Return whether only this member's record in the etcd tells why the world broke. It goes with the member."""
        if name not in self.job.agents:
            return False
        record = self.job.member(name)
        world = self.job.world()
        is_troubled = record is not None and world is not None and bool(record.trouble) and record.after == world.generation
        has_failed = record is not None and world is not None and record.failed is not None and record.failed.generation == world.generation
        return is_troubled or has_failed

    def _obey(self) -> None:
        """Let everybody hear what has happened, and come if called, before anything else happens."""
        for _ in range(6):
            self.group.come_all()
            self.job.turn(1)
            self.job.come_all()

    def _report_started(self) -> None:
        """Say at the server which members' workers run; in an etcd nobody says it."""
        started = self.group.job.membership.started
        self.group.started(*(name for name, agent in self.group.agents.items() if agent.is_working and name not in started))

    def _is_working(self, name: str) -> bool:
        """Return whether the member works at both engines, so that both may hear of it."""
        here = name in self.job.agents and self.job.agents[name].is_working and self.group.agents[name].is_working
        return here and name not in self.over and not self.job.agents[name].has_failed

    # --- what both have come to

    def at_server(self) -> Rest:
        job, group = self.group.job, self.group.job.membership
        working = {n: r for n, r in self.group.world().items() if not self.group.agents[n].view.reform}
        return Rest(
            ranks=working,
            restarts={cause: count for cause, count in job.accounting.restarts.items() if count},
            cause=group.world.cause if group.world is not None else "",
            holders=state_holders(job),
            absent=tuple(absent(group)),
            fruitless=job.progress.fruitless,
            is_done=job.is_done,
            is_closed=bool(job.accounting.closed),
            waiting=frozenset(m.name for m in group.members.values() if m.phase is MemberPhase.READY),
        )

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Return what differs, at the server and in the etcd; nothing if no member is there, because in an etcd nobody decides then."""
        if not self.job.agents:
            return {}
        here, there = self.at_server(), self.in_etcd()
        pairs = {one.name: (getattr(here, one.name), getattr(there, one.name)) for one in fields(Rest)}
        found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if {*found.get("cause", ())} == {"plan", "disruption"}:
            del found["cause"]  # of two signs that are charged to nobody, the transport decides which one is seen first
        return found

    def in_etcd(self) -> Rest:
        agent = next(iter(self.job.agents.values()))
        world = self.job.world()
        records = agent.presence._mirror.records()
        decided = agent.presence._decided
        hosted = job_of(records, self.job.rules, before=decided.job if decided is not None else None, now=self.job.etcd.now)
        in_world = [one for one in self.job.agents.values() if world is not None and one.is_working and one.generation == world.generation]
        working = {one.name: one.held.rank for one in in_world if not one.view.reform}
        return Rest(
            ranks=working,
            restarts=_restarts(world),
            cause=world.cause if world is not None else "",
            holders=state_holders(hosted),
            absent=tuple(absent(hosted.membership)),
            fruitless=hosted.progress.fruitless,
            is_done=hosted.is_done,
            is_closed=bool(world is not None and world.closed),
            waiting=frozenset(one.name for one in self.job.agents.values() if one.is_ready),
        )


def _restarts(world: World | None) -> dict[str, int]:
    """Return the restarts by cause. The server counts a hang at once; in an etcd the transaction that seals the next world does it."""
    if world is None:
        return {}
    found = dict(world.restarts)
    if world.round is not None and world.round.cause == Cause.HANG:
        found[Cause.HANG.value] = found.get(Cause.HANG.value, 0) + 1
    return {cause: count for cause, count in found.items() if count}
