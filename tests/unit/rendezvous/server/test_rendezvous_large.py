"""A world of eight thousand loses half of its members, and its server, with every message encoded as on the wire."""

import asyncio
from typing import Any

from elastic.membership import limits
from elastic.membership.wire import Decoder, Expectation, FromMember, Held, Join, Ready, View, WorldReport, encode
from elastic_training.rendezvous.engine.presented import KEEPERS
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.world_lines import WorldLines

SIZE = 8000
NAMES = tuple(f"train-worker-{number}" for number in range(SIZE))

_messages = Decoder[FromMember](FromMember)
_views = Decoder[View](View)


class Agent:
    """A member that sends and hears what goes over the wire."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = f"{name:-<36}/1700000000000-1-abcdef"
        self.held: Held | None = None
        self.view = View()

    def send(self, view: View) -> None:
        text = encode(view)
        assert len(text) <= limits.MEMBER_VIEW
        self.view = _views.decode(text)
        if self.view.generation:
            fields = ("id", "generation", "rank", "size", "store", "unacknowledged_restarts")
            self.held = Held(**{field: getattr(self.view, field) for field in fields})

    def end(self, reason: str) -> None:
        raise AssertionError(reason)

    def close(self) -> None: ...

    def join(self, hub: Hub, *, ready: bool) -> None:
        message = said(Join(incarnation=self.incarnation, held=self.held, ready=ready, store="10.0.0.1:29500"))
        assert isinstance(message, Join)
        hub.attach("job", name=self.name, link=self, message=message)

    def come(self, hub: Hub) -> None:
        hub.said(
            "job", name=self.name, incarnation=self.incarnation, message=said(Ready(after=self.view.generation, store="10.0.0.1:29501"))
        )


def said(message: Any) -> Any:
    text = encode(message)
    assert len(text) <= limits.MEMBER_MESSAGE
    return _messages.decode(text)


def told(hub: Hub) -> WorldReport:
    (line,) = WorldLines(hub, clock=Clock(), only_changes=False).news()
    assert len(line) <= limits.WORLD_LINE
    return Decoder[WorldReport](WorldReport).decode(line)


def expect(hub: Hub, **fields: Any) -> None:
    body = encode(Expectation(members=NAMES, min=1, max=SIZE, **fields))
    assert len(body) <= limits.EXPECTATION_BODY
    assert hub.expect("job", Decoder[Expectation](Expectation).decode(body))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_half_of_eight_thousand_members_are_lost_and_the_server_with_them() -> None:
    """The survivors of a hundred losses were shut out for ever: their introduction was longer than the server took."""
    clock = Clock()
    hub = Hub(instance="s1", clock=clock)
    expect(hub)
    agents = [Agent(name) for name in NAMES]
    for agent in agents:
        agent.join(hub, ready=True)
    await turn()
    assert len(told(hub).members) == SIZE

    lost, left = agents[::2], agents[1::2]
    for agent in lost:
        hub.detach("job", name=agent.name, incarnation=agent.incarnation, link=agent)
    await turn()
    for _ in range(4):
        clock.now += 0.4
        hub._pulse()
    hub._tick(hub._jobs["job"])
    await turn()
    assert all(agent.view.reform for agent in left)
    for agent in left:
        agent.come(hub)
    await turn()
    world = told(hub)
    assert (world.generation, len(world.members)) == (2, SIZE // 2)
    assert len(world.unacknowledged_restarts) == SIZE // 2
    keepers = [agent for agent in left if agent.held is not None and agent.held.unacknowledged_restarts]
    assert len(keepers) == KEEPERS * 16

    hub = Hub(instance="s2", clock=clock)
    for agent in left:
        agent.join(hub, ready=False)
    await turn()
    expect(hub, floor=2, settled_to=1)
    await turn()
    world = told(hub)
    assert (world.generation, world.phase, len(world.members)) == (2, "running", SIZE // 2)
    assert world.restarts == {"disruption": SIZE // 2}, "nothing is forgotten though the status says none of it yet"
    expect(hub, floor=2, settled_to=2, restarts=world.restarts, unsettled=world.unacknowledged_restarts)
    await turn()
    assert told(hub).unacknowledged_restarts == ()
    assert not any(agent.held is not None and agent.held.unacknowledged_restarts for agent in left), (
        "what is written down is kept no longer"
    )
