"""Changes in process come to the same at the server and in an etcd: who lives on, with which ranks, and what is charged."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from etcd_living import LivingJob
from living_group import living, restarts
from rendezvous_group import Group

from elastic.membership import wire
from elastic_training.rendezvous.engine.messages.in_place import Stage
from elastic_worker.etcd.records import Leaving

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow

Outcome = tuple[str, set[str], dict[str, int], bool]
"""Rank 0, the members that work, the restarts by cause, and whether the world is formed and trains in process.

A worker that failed may be back before or after the others have formed the next world, so the other ranks depend on the transport.
"""


class Server:
    """The engine at the server."""

    def __init__(self) -> None:
        self.group: Group = living(3, max=4)

    def leave(self, name: str) -> None:
        staying = [other for other in self.group.agents if other != name]
        self.group.expect(*staying, max=4, leaving=(wire.LeaveOrder(member=name, by_s=30.0),))

    def join(self, name: str) -> None:
        self.group.expect(*self.group.agents, name, max=4)
        self.group.start(name)
        self.group.hello(name)

    def lose(self, name: str) -> None:
        self.group.kill(name)

    def fail(self, name: str) -> None:
        self.group.fail(name)
        self.group.come(name)

    def complain(self, name: str) -> None:
        self.group.complain(name)

    def rest(self) -> Outcome:
        for _ in range(6):
            self.group.advance(1.0)
            self.group.obey_all()
            for name, agent in self.group.agents.items():
                if agent.is_provisional and not agent.alive:
                    self.group.hello(name)
        world = self.group.job.membership.world
        assert world is not None
        ranks = {name: rank for name, rank in self.group.world().items() if name in world.ranks}
        return min(ranks, key=ranks.__getitem__), set(ranks), restarts(self.group), self.group.job.in_place.stage is Stage.RUN


class Etcd:
    """The engine at the members of an etcd."""

    def __init__(self) -> None:
        self.job = LivingJob(max=4, grace_s=5.0)
        self.job.hosts.are_there = True
        self.job.start("w0", "w1", "w2")
        self.job.expect("w0", "w1", "w2", max=4)
        self.job.live(6)
        for _ in range(5):
            self.job.train()
            self.job.turn()

    def leave(self, name: str) -> None:
        self.job.expect(*(other for other in self.job.agents if other != name), max=4, leaving=(Leaving(name, "plan", 30.0),))

    def join(self, name: str) -> None:
        self.job.expect(*self.job.agents, name, max=4)
        self.job.start(name)

    def lose(self, name: str) -> None:
        self.job.end(name)

    def fail(self, name: str) -> None:
        self.job.agents[name].fail()

    def complain(self, name: str) -> None:
        self.job.agents[name].complain()

    def rest(self) -> Outcome:
        self.job.live(10)
        world, working = self.job.world(), self.job.in_world()
        assert world is not None
        ranks = {name: rank for rank, name in enumerate(self.job.names()) if name in working}
        return min(ranks, key=ranks.__getitem__), set(ranks), dict(world.restarts), self.job.change().stage == "run"


@pytest.fixture
def engines() -> Iterator[tuple[Server, Etcd]]:
    both = Server(), Etcd()
    yield both
    both[1].job.close()


HAPPENINGS: dict[str, list[Callable[[Any], None]]] = {
    "a member leaves": [lambda engine: engine.leave("w2")],
    "rank 0 leaves": [lambda engine: engine.leave("w0")],
    "a member joins": [lambda engine: engine.join("w3")],
    "a member is lost": [lambda engine: engine.lose("w1")],
    "rank 0 is lost": [lambda engine: engine.lose("w0")],
    "a worker fails": [lambda engine: engine.fail("w1")],
    "communication breaks": [lambda engine: engine.complain("w1")],
    "one after the other": [
        lambda engine: engine.join("w3"),
        lambda engine: engine.lose("w0"),
        lambda engine: engine.fail("w2"),
        lambda engine: engine.leave("w1"),
    ],
}


@pytest.mark.parametrize("happenings", HAPPENINGS.values(), ids=list(HAPPENINGS))
def test_both_engines_change_worlds_alike(engines: tuple[Server, Etcd], happenings: list[Callable[[Any], None]]) -> None:
    for happens in happenings:
        for engine in engines:
            happens(engine)
        server, etcd = (engine.rest() for engine in engines)
        assert etcd == server
        assert server[-1], "in process"
