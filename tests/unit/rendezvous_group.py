"""Fake members around a real membership engine, in virtual time: agents that behave as torchrun's do, and links that can break."""

from dataclasses import dataclass, field, replace
from typing import Any

from elastic.membership.wire import Beat, Expectation, Failed, Finished, FromMember, Held, Join, Leave, Ready, Started, View
from elastic_training.rendezvous.engine.events import Event, Expected, Lost, Said, Tick
from elastic_training.rendezvous.engine.invariants import broken
from elastic_training.rendezvous.engine.messages.in_place import Able, Complains, Formed, Holds, Progressed, Stage
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.state.timings import Limits
from elastic_training.rendezvous.engine.step import Cut, Publish, Refuse, SendView, Wake, begin, step
from elastic_training.rendezvous.engine.views import summary

BEAT_S = 5.0


@dataclass
class Agent:
    """One incarnation of a member, with what it believes."""

    name: str
    incarnation: str
    held: Held | None = None
    is_ready: bool = True
    is_linked: bool = False
    is_refused: bool = False
    failed: bool = False
    status: int | None = None
    workers: int = 0
    """The number of its workers that have said hello."""
    is_provisional: bool = False
    alive: bool = False
    step: int | None = None
    trained: int | None = None
    """The step of the state that its processes hold."""
    round: int = 0
    formed: int = 0
    """The round in which its processes entered their world."""
    view: View = field(default_factory=View)
    entered: list[int] = field(default_factory=list)

    @property
    def generation(self) -> int:
        return self.held.generation if self.held is not None else 0

    @property
    def is_working(self) -> bool:
        return self.held is not None and not self.is_ready

    @property
    def store(self) -> str:
        return f"{self.name}:{self.generation}"

    def join(self) -> Join:
        failed = self.is_ready and self.failed
        return Join(
            incarnation=self.incarnation,
            held=replace(self.held, round=self.round) if self.held is not None else None,
            ready=self.is_ready,
            store=self.store,
            failed=failed,
            status=self.status,
            workers=self.workers,
            provisional=self.is_provisional,
            alive=self.is_ready and self.alive,
            step=self.step if self.is_ready else None,
            round=self.round if self.is_ready and self.alive else 0,
        )

    def hear(self, view: View) -> None:
        self.view = view
        change = view.change
        if view.provisional and self.is_ready and not self.alive:
            self.is_ready, self.is_provisional = False, True
        lives_on = change is not None and change.stage is Stage.FORM and self.workers > 0
        if (lives_on or (self.is_ready and not self.alive)) and view.generation > self.generation and not view.closed:
            self.held = Held(
                id=view.id,
                generation=view.generation,
                rank=view.rank,
                size=view.size,
                store=view.store,
                unacknowledged_restarts=view.unacknowledged_restarts,
            )
            if not lives_on:
                self.workers, self.trained = 0, None
            self.is_provisional = False
            self.is_ready = self.failed = self.alive = False
            self.step = None
            self.entered.append(view.generation)
        elif change is not None and change.stage is Stage.RUN and self.alive and view.generation == self.generation:
            self.is_ready = self.alive = False  # the change was called off
        if self.held is not None and (view.id == self.held.id or view.unacknowledged_restarts):
            self.held = replace(self.held, unacknowledged_restarts=view.unacknowledged_restarts)


class Group:
    """A job's engine, its agents and their links. Every event passes through `apply`, which records the worlds that were sealed."""

    def __init__(self, *, limits: Limits | None = None, up_for_s: float = 100.0) -> None:
        self.limits = limits or Limits()
        self.now = 1000.0
        self.starts = 0
        self.job: JobState
        self.agents: dict[str, Agent] = {}
        self.sealed: dict[str, tuple[str | None, ...]] = {}
        self.new_worlds: list[tuple[tuple[str | None, ...], Expectation | None]] = []
        self.numbers: dict[int, str] = {}
        self.cuts: list[tuple[str, str]] = []
        self.expectation: Expectation | None = None
        self.heard = 0  # the highest generation that the controller has heard of
        self.start_server(up_for_s=up_for_s)

    # --- the server ---

    def start_server(self, *, up_for_s: float = 0.0) -> None:
        """Start a new server process: it knows nothing, and every link is gone."""
        self.starts += 1
        self.job = begin("job", instance=f"s{self.starts}", up_since=self.now - up_for_s, now=self.now, limits=self.limits)
        self.wake_at = self.now
        for agent in self.agents.values():
            agent.is_linked = False

    def apply(self, event: Event) -> None:
        before = self.job
        self.job, effects = step(self.job, event, self.now)
        assert (wrong := broken(before, self.job)) == [], wrong
        assert self.job.membership.generation >= before.membership.generation or before.membership.expectation is None, (
            "only a claim that could not be judged is dropped"
        )
        standing = self.job.membership.world
        former = before.membership.world
        if standing is not None and not standing.adopted and (former is None or former.id != standing.id):
            assert standing.id not in self.sealed
            self.sealed[standing.id] = standing.by_rank
            self.new_worlds.append((standing.by_rank, self.job.membership.expectation))
            assert self.numbers.setdefault(standing.generation, standing.id) == standing.id, "two worlds of one generation"
        for effect in effects:
            match effect:
                case SendView(member=name, view=view):
                    agent = self.agents.get(name)
                    if agent is not None and agent.is_linked and self.job.membership.members[name].incarnation == agent.incarnation:
                        agent.hear(view)
                case Refuse(member=name, incarnation=incarnation):
                    if name in self.agents and self.agents[name].incarnation == incarnation:
                        self.agents[name].is_refused = True
                case Cut(member=name, incarnation=incarnation):
                    self.cuts.append((name, incarnation))
                    if name in self.agents and self.agents[name].incarnation == incarnation:
                        self.agents[name].is_linked = False
                case Wake(at=at):
                    self.wake_at = at if self.wake_at <= self.now else min(self.wake_at, at)
                case Publish():
                    self.heard = max(self.heard, summary(self.job).generation)

    def expect(self, *members: str, **fields: object) -> None:
        expectation = Expectation(members=members, **{"min": 1, "max": max(1, len(members)), **fields})  # type: ignore[arg-type]
        self.expectation = expectation
        self.retell()

    def retell(self) -> None:
        """Let the controller send its full state again, with what it has heard as the floor."""
        if self.expectation is not None:
            self.expectation = replace(self.expectation, floor=max(self.expectation.floor, self.heard))
            self.apply(Expected(self.expectation))

    def advance(self, seconds: float) -> None:
        """Let time pass: linked agents beat, and the engine is woken when it asked to be."""
        until = self.now + seconds
        beat_at = self.now + BEAT_S
        for _ in range(10_000):
            at = min(self.wake_at, beat_at, until)
            self.now = max(self.now, at)
            if self.now >= until:
                break
            if at == beat_at:
                beat_at += BEAT_S
                self._beat()
            else:
                self.apply(Tick())
        else:
            raise AssertionError("the engine wants to be woken without end")
        if self.wake_at <= self.now:
            self.apply(Tick())
        self._beat()

    def _beat(self) -> None:
        for name, agent in list(self.agents.items()):
            if agent.is_linked and not agent.is_refused:
                self.say(name, Beat())

    # --- the members ---

    def start(self, name: str, *, pod: str = "", is_ready: bool = True) -> Agent:
        """Let a fresh agent of this name join; one that is not ready boots while the others work."""
        self.starts += 1
        agent = self.agents[name] = Agent(name, f"{pod or name}/{self.starts}", is_ready=is_ready)
        self.link(name)
        return agent

    def link(self, name: str) -> None:
        agent = self.agents[name]
        if not agent.is_refused:
            agent.is_linked = True
            self.apply(Said(name, agent.incarnation, agent.join()))

    def say(self, name: str, message: FromMember) -> None:
        agent = self.agents[name]
        if agent.is_linked:
            self.apply(Said(name, agent.incarnation, message))

    def cut(self, name: str, *, noticed: bool = True) -> None:
        agent = self.agents[name]
        agent.is_linked = False
        if noticed:
            self.apply(Lost(name, agent.incarnation))

    def kill(self, name: str) -> None:
        """Kill the agent's process, and its connection with it."""
        self.cut(name)
        del self.agents[name]

    def leave(self, name: str) -> None:
        self.say(name, Leave(reason="SIGTERM", by_signal=True))
        del self.agents[name]

    def come(self, name: str, *, trouble: str = "") -> None:
        """Stop working and stand at the barrier."""
        agent = self.agents[name]
        agent.is_ready, agent.alive, agent.step, agent.workers, agent.trained = True, False, None, 0, None
        agent.is_provisional = False
        self.say(name, Ready(after=agent.generation, store=agent.store, trouble=trouble))

    # --- the members' processes, if they can change worlds

    def hello(self, name: str, *, workers: int = 1, step: int | None = None) -> None:
        """Tell that all workers of a member wait at their first boundary."""
        agent = self.agents[name]
        agent.workers, agent.trained = workers, step
        if agent.is_provisional:
            agent.is_ready = agent.alive = True
        self.say(name, Able(workers=workers, generation=0 if agent.is_provisional else agent.generation, step=step))

    def obey(self, name: str) -> bool:
        """Let a member's processes answer the change that it was told of; whether there was anything to answer."""
        agent, change = self.agents[name], self.agents[name].view.change
        if change is None or not agent.workers:
            return False
        match change.stage:
            case Stage.HOLD if change.round > agent.round:
                agent.round = change.round
                self.say(name, Holds(round=change.round, step=(agent.trained or 0) + 1))
            case Stage.STOP if not agent.is_ready:
                agent.trained = change.step
                self.at_boundary(name)
            case Stage.ABORT if change.round > agent.round:
                agent.round = change.round
                self.at_boundary(name)
            case Stage.FORM if change.round > agent.formed:
                agent.round = agent.formed = change.round
                agent.trained = change.step
                self.say(name, Formed(round=change.round))
            case _:
                return False
        return True

    def at_boundary(self, name: str) -> None:
        """Let a member's processes come to the barrier and live."""
        agent = self.agents[name]
        agent.is_ready, agent.alive, agent.step = True, True, agent.trained
        self.say(name, Ready(after=agent.generation, store=agent.store, alive=True, step=agent.step, round=agent.round))

    def obey_all(self) -> None:
        """Let all processes answer until there is nothing to answer."""
        while [name for name, agent in list(self.agents.items()) if agent.is_linked and self.obey(name)]:
            pass

    def obey_all_but(self, late: str, stage: Stage) -> None:
        """Let all processes answer, except for one member that does not answer at this stage."""
        while [name for name, agent in self.agents.items() if (name != late or not _is_at(agent, stage)) and self.obey(name)]:
            pass

    def train(self, *names: str, step: int) -> None:
        """Let these members make steps up to this one."""
        for name in names or list(self.agents):
            agent = self.agents[name]
            agent.trained = step
            self.say(name, Progressed(generation=agent.generation, step=step))

    def complain(self, name: str) -> None:
        """Report that a step of this member broke off, because its peers could not be reached."""
        self.say(name, Complains(round=self.agents[name].formed, words="Connection reset by peer"))

    def fail(self, name: str, status: int = 1, **why: Any) -> None:
        agent = self.agents[name]
        if not why.get("replaced"):
            agent.failed, agent.status, agent.workers, agent.trained = True, status, 0, None
        self.say(name, Failed(generation=agent.generation, status=status, **why))

    def started(self, *names: str) -> None:
        for name in names:
            self.say(name, Started(generation=self.agents[name].generation))

    def finish(self, name: str) -> None:
        self.say(name, Finished(generation=self.agents[name].generation))

    def come_all(self) -> None:
        """Bring all agents that are asked back, and those whose worker failed."""
        for name, agent in list(self.agents.items()):
            if (agent.is_working or agent.is_provisional or agent.alive) and (agent.view.reform or agent.failed):
                self.come(name)

    def world(self) -> dict[str, int]:
        """Return the rank of each agent that works in the current world, by name."""
        standing = self.job.membership.world
        if standing is None:
            return {}
        working = [a for a in self.agents.values() if a.is_working and a.held is not None and a.held.id == standing.id]
        return {a.name: a.held.rank for a in working if a.held is not None}


def _is_at(agent: Agent, stage: Stage) -> bool:
    return agent.view.change is not None and agent.view.change.stage is stage


def group_of(count: int, *, is_able: bool = False, **fields: object) -> Group:
    """Make a group whose members w0, w1, ... are all in one world."""
    group = Group()
    names = [f"w{index}" for index in range(count)]
    group.expect(*names, **fields)
    for name in names:
        group.start(name)
    assert len(group.world()) == count
    if is_able:
        for name in names:
            group.hello(name)
        group.obey_all()
    return group
