"""The agents of the simulation, as torchrun's with our handler: each in one run of a container, with its connections to the server."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from sim_ends import Ended
from sim_rendezvous import REACH_S, SimHub, SimServer

from elastic.membership.training import Report
from elastic.membership.wire import Beat, Failed, Finished, FromMember, Held, Join, Leave, Ready, Started, View
from elastic_training.rendezvous.delivery import REFUSED, UNREACHABLE
from elastic_training.rendezvous.server.hub import Full, Hub

BEAT_S = 5.0
SILENCE_S = 20.0
"""Seconds without an answer to its pings after which an agent looks for another server."""
AWAY_S = 600.0
"""Seconds without a server after which an agent gives up at the barrier."""


@dataclass(eq=False, slots=True)
class Connection:
    """One connection of an agent; the hub's Link."""

    agent: "Agent"
    hub: SimHub
    is_open: bool = True
    is_silent: bool = False
    heard_at: float = 0.0
    """when the agent heard of the server last"""
    held_up: list[Callable[[], object]] = field(default_factory=list)

    def falls_silent(self, seconds: float) -> None:
        if not self.is_silent:
            self.is_silent = True
            asyncio.get_running_loop().call_later(seconds, self._passes_again)

    def _passes_again(self) -> None:
        self.is_silent = False
        held_up, self.held_up = self.held_up, []
        for call in held_up:
            call()

    def carry(self, call: Callable[[], object]) -> None:
        """Carry one message in either direction, in order."""
        if self.is_silent:
            self.held_up.append(call)
        else:
            call()

    def up(self, call: Callable[[], object]) -> None:
        """Deliver a message of the agent, unless the hub has been replaced by then."""
        self.carry(lambda: self.hub.hears(call))

    def down(self, call: Callable[..., object], *args: object) -> None:
        self.carry(lambda: asyncio.get_running_loop().call_later(REACH_S, call, self, *args))

    def answer_ping(self) -> None:
        def answered() -> None:
            self.heard_at = asyncio.get_running_loop().time()

        self.up(lambda: self.carry(answered))

    def send(self, view: View) -> None:
        self.down(self.agent.hear, view)

    def end(self, reason: str) -> None:
        self.is_open = False
        self.down(self.agent.refused, reason)

    def close(self) -> None:
        self.is_open = False
        self.down(self.agent.cut)

    def breaks(self, hub: Hub) -> None:
        """Break the connection. Both sides notice, unless one of them is gone."""
        self.is_open = False
        if hub is self.hub:
            self.leave()
        asyncio.get_running_loop().call_later(REACH_S, self.agent.cut, self)

    def leave(self) -> None:
        """Let the hub hear that the connection is gone."""
        agent = self.agent
        self.up(partial(self.hub.detach, agent.job_uid, name=agent.name, incarnation=agent.incarnation, link=self))


@dataclass(eq=False, slots=True)
class Agent:
    """torchrun's agent in one run of a container. `ended` hears the exit code when it ends by itself."""

    name: str
    incarnation: str
    job_uid: str
    server: SimServer
    draw: random.Random
    ended: Ended
    held: Held | None = None
    is_ready: bool = True
    is_over: bool = False
    is_finishing: bool = False
    has_failed: bool = False
    link: Connection | None = None
    away_since: float | None = None
    entered: list[int] = field(default_factory=list)
    step: int = 0
    """The state that training has left in this container."""
    cut_until: float = 0.0
    """Time until which its node reaches no server."""

    def start(self) -> None:
        self._later(self.draw.uniform(0.1, 2.0), self._connect)
        self._later(BEAT_S, self._beat)

    def cut_node(self, seconds: float) -> None:
        """Let the node of this agent reach nobody, and nobody reach it; its processes work on."""
        self.cut_until = _time() + seconds
        if self.link is not None:
            self.link.falls_silent(seconds)

    def stop(self, *, says_so: bool) -> None:
        """End the process from outside."""
        if self.link is not None and self.link.is_open:
            if says_so:
                self._say(Leave(reason="SIGTERM", by_signal=True))
            self._drop()
        self.is_over = True

    def fail(self, *, generation: int | None = None) -> bool:
        """End a worker process; torchrun reports it and comes back to the barrier. Return False if no process was running (then)."""
        is_working = self.held is not None and not (self.is_ready or self.is_over or self.is_finishing)
        if not is_working or generation not in (None, self._generation):
            return False
        self.has_failed = True
        self._say(Failed(generation=self._generation, status=1))
        self._later(self.draw.uniform(0.05, 0.5), self._come, self._generation)
        return True

    def finish(self) -> None:
        """Let the training program finish its work."""
        if self.held is not None and not self.is_ready and not self.is_over and not self.is_finishing:
            self.is_finishing = True
            self._say(Finished(generation=self.held.generation))
            self._later(3.0, self._exit, 0)

    def hear(self, link: Connection, view: View) -> None:
        if link is not self.link or not link.is_open or self.is_over or self.is_finishing:
            return
        if self.held is not None and (view.id == self.held.id or view.unacknowledged_restarts):
            self.held = replace(self.held, unacknowledged_restarts=view.unacknowledged_restarts)
        if view.closed:
            self._later(0.2, self._exit, 1)
        elif view.finished and self.is_ready:
            self._later(0.2, self._exit, 0)
        elif self.is_ready and view.generation > self._generation:
            world = {"id": view.id, "generation": view.generation, "rank": view.rank, "size": view.size, "store": view.store}
            self.held = Held(**world, unacknowledged_restarts=view.unacknowledged_restarts)  # type: ignore[arg-type]
            self.is_ready = self.has_failed = False
            self.entered.append(view.generation)
            self._say(Started(generation=view.generation))
            self._later(random.Random(f"{self.incarnation} {view.id}").uniform(0.5, 10.0), self._begin_training, view)
        elif view.reform and not self.is_ready:
            self._later(self.draw.choice([0.05, 0.5, 3.0]), self._come, self._generation)

    def _begin_training(self, view: View) -> None:
        """Give all agents the newest state that one of them has, once all are there."""
        if not self.is_training(view.id):
            return
        group = self.server.groups.setdefault((self.job_uid, view.id), {})
        group[self.name] = self
        if len(group) == view.size and all(agent.is_training(view.id) for agent in group.values()):
            newest, best = max(agent.step for agent in group.values()), self.server.steps.get(self.job_uid, 0)
            if newest < best:
                self.server.lost_steps.append(f"world {view.id} of {sorted(group)} begins at step {newest}, and {best} was reached")
            for agent in group.values():
                agent.step = newest
            self._step(view.id)

    def _step(self, world: str) -> None:
        group = self.server.groups[self.job_uid, world]
        if not all(agent.is_training(world) for agent in group.values()):
            return
        for agent in group.values():
            agent.step += 1
        self.server.steps[self.job_uid] = max(self.step, self.server.steps.get(self.job_uid, 0))
        if self.server.hears_steps and not self.server.is_down and _time() >= self.cut_until:
            self.server.hub.report(self.job_uid, Report(member=self.name, generation=self._generation, step=self.step))
        self._later(self.server.step_s(), self._step, world)

    def is_training(self, world: str) -> bool:
        return self.held is not None and self.held.id == world and not (self.is_ready or self.is_over or self.is_finishing)

    def refused(self, link: Connection, reason: str) -> None:
        if link is self.link and not self.is_over:
            self._later(0.1, self._exit, 1, f"{REFUSED}: this agent was replaced")

    def cut(self, link: Connection) -> None:
        if link is self.link and not self.is_over:
            self.link = None
            self._later(self.draw.uniform(0.05, 0.5), self._connect)

    @property
    def _generation(self) -> int:
        return self.held.generation if self.held is not None else 0

    def _connect(self) -> None:
        if self.is_over or self.link is not None:
            return
        if _time() < self.cut_until:
            self._later(0.5, self._connect)
            return
        if self.server.is_out_of_reach:
            self.away_since = self.away_since if self.away_since is not None else _time()
            if self.is_ready and _time() > self.away_since + AWAY_S:
                self._exit(1, f"{UNREACHABLE}: no answer")
            self._later(0.5, self._connect)
            return
        self.away_since = None
        self.link = Connection(self, self.server.hub, heard_at=asyncio.get_running_loop().time())
        self.server.links.append(self.link)
        self.link.up(partial(self._present, self.link, self._join()))
        self._repeat()

    def _join(self) -> Join:
        """Return the first message of a connection."""
        store = f"{self.name}:{self._generation}"
        failed = self.is_ready and self.has_failed
        return Join(
            incarnation=self.incarnation, held=self.held, ready=self.is_ready, store=store, failed=failed, status=1 if failed else None
        )

    def _repeat(self) -> None:
        """Say again what the server of the last connection may have forgotten."""
        if self.has_failed and not self.is_ready:
            self._say(Failed(generation=self._generation, status=1))

    def _present(self, link: Connection, join: Join) -> None:
        try:
            link.hub.attach(self.job_uid, name=self.name, link=link, message=join)
        except Full:
            link.close()

    def _come(self, generation: int) -> None:
        """Stop working in this world and stand at the barrier."""
        if generation == self._generation and not self.is_over and not self.is_ready and not self.is_finishing:
            self.is_ready = True
            self._say(Ready(after=self._generation, store=f"{self.name}:{self._generation}"))

    def _beat(self) -> None:
        if not self.is_over:
            if self.link is not None and asyncio.get_running_loop().time() > self.link.heard_at + SILENCE_S:
                self._drop()
                self._later(self.draw.uniform(0.05, 0.5), self._connect)
            self._say(Beat())
            if self.link is not None:
                self.link.answer_ping()
            self._later(BEAT_S, self._beat)

    def _say(self, message: FromMember) -> None:
        if self.link is not None and self.link.is_open:
            said = self.link.hub.said
            self.link.up(partial(said, self.job_uid, name=self.name, incarnation=self.incarnation, message=message))

    def _drop(self) -> None:
        assert self.link is not None
        link, self.link = self.link, None
        if link in self.server.links:
            self.server.links.remove(link)
        link.is_open = False
        link.leave()

    def _exit(self, code: int, unmet: str = "") -> None:
        if not self.is_over:
            self.stop(says_so=False)
            self.ended(code, unmet=unmet if not self.has_failed else "")

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *args)


def _time() -> float:
    return asyncio.get_running_loop().time()
