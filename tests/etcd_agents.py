"""Agents of a job that meet in an etcd in memory (etcd_store): each decides with the real presence, whose thread a test plays."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from etcd_store import JOB, PREFIX, TOKEN, Body, FakeEtcd

from elastic_worker.agent.view import View
from elastic_worker.etcd.gateway import Unreachable
from elastic_worker.etcd.group import Rules
from elastic_worker.etcd.in_process import ChangingPresence
from elastic_worker.etcd.records import EXPECTED, MEMBERS, WORLD, Expected, World
from elastic_worker.etcd.settings import Settings

PORTS = itertools.count(1)


class Watch:
    """Brings what happened since a revision; not while it is deaf."""

    def __init__(self, link: "Link", since: int) -> None:
        self._link = link
        self._since = since
        self.is_broken = False

    def changes(self) -> Iterator[Any]:
        etcd = self._link.etcd
        if self.is_broken or self._link.is_cut:
            yield Unreachable("etcd ended the watch")
        elif not self._link.is_deaf and self._since <= etcd.compacted:
            yield {"canceled": True, "compact_revision": str(etcd.compacted)}
        elif not self._link.is_deaf:
            events = etcd.changes(self._since)
            self._since = etcd.revision + 1
            if events:
                yield {"events": events}

    def close(self) -> None:
        self.is_broken = True


@dataclass
class Link:
    """One agent's way to etcd."""

    etcd: FakeEtcd
    is_cut: bool = False
    is_deaf: bool = False
    loses_answers: bool = False
    watches: list[Watch] = field(default_factory=list)

    def call(self, path: str, body: Body) -> Body:
        if self.is_cut:
            raise Unreachable("connection refused")
        answer = self.etcd.call(path, body)
        if self.loses_answers and path != "kv/range":
            self.loses_answers = False
            raise Unreachable("no whole answer within 2 s")
        return answer

    def watch(self, request: Body) -> Watch:
        if self.is_cut:
            raise Unreachable("connection refused")
        watch = Watch(self, int(request["create_request"]["start_revision"]))
        self.watches = [watch]
        return watch

    def hurry(self, call_s: float) -> None: ...

    def close(self) -> None: ...


class Hosts:
    """Hosts of all agents, which know which processes have ended. If `are_there` is false, nobody answers."""

    def __init__(self) -> None:
        self.are_there = False
        self.ended: set[str] = set()

    def ask(self, addresses: Iterable[str]) -> None: ...

    def has_ended(self, address: str) -> bool:
        return self.are_there and address in self.ended

    def forget(self) -> None: ...


@dataclass
class Alive:
    """The address at which an agent listens."""

    address: str

    def close(self) -> None: ...


@dataclass(frozen=True)
class Release:
    """The parts of a release of elastic_worker that an agent here consists of."""

    presence: Any = ChangingPresence
    settings: Any = Settings
    rules: Any = Rules
    view: Any = View


OURS = Release()


class Agent:
    """An agent that behaves as torchrun with our handler does; its presence is the real one, whose thread is played by `turn`."""

    def __init__(self, etcd: FakeEtcd, name: str, rules: Rules, hosts: Hosts, release: Release = OURS) -> None:
        self.link = Link(etcd)
        self.hosts = hosts
        self.name = name
        settings = release.settings(
            endpoints=(),
            tls=None,
            login=None,
            prefix=PREFIX,
            job=JOB,
            member=name,
            pod_uid="",
            address="10.0.0.1",
            rules=release.rules(**{name: getattr(rules, name) for name in release.rules.__dataclass_fields__}),
            lease_s=5,
            linger_s=300,
            away_s=600.0,
            token=TOKEN,
        )
        alive: Any = Alive(f"10.0.0.1:{next(PORTS)}")
        self.presence = release.presence(settings, on_signal=lambda number: None, clock=lambda: etcd.now, etcd=self.link, alive=alive)
        self.alive_at, self.presence._asking = alive.address, hosts  # type: ignore[assignment]
        self.generation = 0
        self.entered: list[int] = []
        self.view = release.view({})
        self.is_ready = False
        self.has_failed = False
        self.is_frozen = False
        self.come()

    def come(self, trouble: str = "") -> None:
        """Come to the barrier."""
        self.is_ready, self.has_failed = True, False
        self.presence.announce_ready(after=self.generation, store=f"{self.name}:{self.generation}", trouble=trouble)

    @property
    def is_working(self) -> bool:
        return not self.is_ready and self.generation > 0

    def step(self, step: int) -> None:
        """Report the step, as a worker does."""
        self.presence.note_step(self.generation, step)

    def fail(self, error: str = "", *, status: int = 1, out_of_memory: bool = False, rank: int | None = None) -> None:
        self.has_failed = True
        fields = {"status": status, "error": error, "out_of_memory": out_of_memory, "rank": rank}
        self.presence.report_state("failed", generation=self.generation, **fields)

    def turn(self) -> None:
        """Do once what the presence's thread and then the handler do."""
        self.presence._try()
        self.view = view = self.presence.view
        if self.is_ready and view.generation > self.generation and not view.closed:
            self.is_ready, self.generation = False, view.generation
            self.entered.append(view.generation)
            self.presence.enter(view)
            self.held = view

    def end(self, *, politely: bool) -> None:
        self.hosts.ended.add(self.alive_at)
        if politely:
            self.presence._is_ending, self.presence._left = True, "received SIGTERM"
            self.presence._say_goodbye()
        self.presence.close()


class Job:
    """The agents of one job, and what they do together."""

    def __init__(self, **rules: Any) -> None:
        self.etcd = FakeEtcd()
        self.rules = Rules(**{"min": 1, "max": 3, **rules})
        self.agents: dict[str, Agent] = {}
        self.ended: list[Agent] = []
        self.hosts = Hosts()
        self.release_of: Callable[[str], Release] = lambda name: OURS

    def start(self, *names: str) -> None:
        for name in names:
            self.agents[name] = Agent(self.etcd, name, self.rules, self.hosts, self.release_of(name))

    def expect(self, *names: str, **fields: Any) -> None:
        expected = Expected(**{"members": names, "min": self.rules.min, "max": self.rules.max, **fields})
        self.etcd.write(EXPECTED, self.etcd.seal.close(EXPECTED, expected))

    def end(self, name: str, *, politely: bool = False) -> None:
        agent = self.agents.pop(name)
        agent.end(politely=politely)
        self.ended.append(agent)

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            for agent in list(self.agents.values()):
                if not agent.is_frozen:
                    agent.turn()

    def come_all(self) -> None:
        """Bring the agents that are asked back, or whose workers failed, to the barrier."""
        for agent in self.agents.values():
            if not agent.is_frozen and agent.is_working and (agent.view.reform or agent.has_failed):
                agent.come()

    def live(self, seconds: float = 30.0, step_s: float = 0.5) -> None:
        """Let time pass, while all agents do what is asked."""
        for _ in range(int(seconds / step_s)):
            self.etcd.advance(step_s)
            self.turn(1)
            self.come_all()
        self.turn()

    def world(self) -> World | None:
        found = self.etcd.open(WORLD)
        return found if isinstance(found, World) else None

    def in_world(self) -> set[str]:
        return {agent.name for agent in self.agents.values() if agent.is_working and not agent.view.reform}

    def names(self) -> tuple[str, ...]:
        world = self.world()
        return tuple(seat.name for seat in world.seats) if world is not None else ()

    def member(self, name: str) -> Any:
        return self.etcd.open(MEMBERS + name)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.presence.close()
