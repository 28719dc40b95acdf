"""What the controller says to the rendezvous server, and what it makes of what it hears."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest
from job_builders import restarts

from controller.acting.link import RendezvousLink, expectation
from controller.deciding.actions import Budget, End, Leave, SetExpectation
from elastic.api.words import Cause
from elastic.membership import wire

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def tell(**changes: object) -> SetExpectation:
    nothing = {"members": ("a",), "pending": (), "leaving": (), "ended": (), "least": 1, "most": 2, "sizes": (), "budget": Budget()}
    return SetExpectation(**{**nothing, "restarts": (), "grace_s": 30.0, "floor": 0, **changes})  # type: ignore[arg-type]


class Server:
    """Hears expectations and plays worlds; every call fails while it is away."""

    def __init__(self) -> None:
        self.heard: list[wire.Expectation] = []
        self.said: asyncio.Queue[wire.Expectation] = asyncio.Queue()
        self.forgotten: list[str] = []
        self.worlds_to_tell: asyncio.Queue[wire.World] = asyncio.Queue()
        self.is_away = False
        self.open: Callable[[], None] | None = None
        self.is_listened_to = asyncio.Event()

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None:
        if self.is_away:
            raise RuntimeError("away")
        self.heard.append(expectation)
        self.said.put_nowait(expectation)

    async def forget(self, job_uid: str) -> None:
        self.forgotten.append(job_uid)

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[wire.World]:
        self.open = on_open
        self.is_listened_to.set()
        while True:
            yield await self.worlds_to_tell.get()


def test_times_become_durations_and_causes_the_servers_words() -> None:
    leave = Leave("b", NOW + timedelta(seconds=12), "plan")
    said = expectation(tell(leaving=(leave,), ended=(End("a", "u", 3, Cause.OUT_OF_MEMORY),), restarts=(("outOfMemory", 2),)), now=NOW)
    assert said.leaving == (wire.Leaving(member="b", by_s=12.0, cause="plan"),)
    assert said.ended == (wire.Ended(member="a", pod_uid="u", run=3, cause="outOfMemory"),)
    assert said.restarts == {"outOfMemory": 2}


async def test_only_what_is_new_goes_over_the_wire() -> None:
    server = Server()
    link = RendezvousLink(server, errors=(RuntimeError,))
    await link.tell("job", tell())
    await link.tell("job", tell())
    await link.tell("job", tell(members=("a", "b")))
    assert [said.members for said in server.heard] == [("a",), ("a", "b")]
    assert [said.number for said in server.heard] == [1, 2]
    assert len({said.speaker for said in server.heard}) == 1
    await RendezvousLink(server, errors=(RuntimeError,)).tell("job", tell())
    assert server.heard[-1].speaker != server.heard[0].speaker, "another process counts anew"


async def test_a_server_that_is_away_is_an_error_that_the_round_can_see_and_is_told_again() -> None:
    server = Server()
    link = RendezvousLink(server, errors=(RuntimeError,))
    server.is_away = True
    with pytest.raises(ConnectionError, match="away"):
        await link.tell("job", tell())
    server.is_away = False
    await link.tell("job", tell())
    assert len(server.heard) == 1


async def test_a_server_that_comes_back_hears_the_newest_word_and_never_an_older_one_after_it() -> None:
    """What was last heard was said again, while a round said what was new: whichever came last stood."""
    server = Server()
    link = RendezvousLink(server, errors=(RuntimeError,))
    await link.tell("job", tell(members=("a", "b")))
    running = asyncio.create_task(link.run(lambda uid: None))
    try:
        server.is_away = True
        with pytest.raises(ConnectionError):
            await link.tell("job", tell(members=("a",)))
        server.is_away = False
        server.said = asyncio.Queue()
        async with asyncio.timeout(60):
            await server.is_listened_to.wait()
            assert server.open is not None
            server.open()
            assert (await server.said.get()).members == ("a",)
        await link.tell("job", tell(members=("a",)))
        assert [said.members for said in server.heard] == [("a", "b"), ("a",)]
    finally:
        running.cancel()


async def test_a_word_of_which_nobody_knows_whether_it_arrived_is_followed_by_the_next_in_any_case() -> None:
    server = Server()
    link = RendezvousLink(server, errors=(RuntimeError,))
    await link.tell("job", tell())
    server.is_away = True
    with pytest.raises(ConnectionError):
        await link.tell("job", tell(members=("a", "b")))
    server.is_away = False
    await link.tell("job", tell())
    assert [said.members for said in server.heard] == [("a",), ("a",)]


async def test_a_server_that_was_restarted_hears_every_expectation_again() -> None:
    server = Server()
    link = RendezvousLink(server, errors=(RuntimeError,))
    await link.tell("one", tell())
    await link.tell("two", tell(members=("z",)))
    changed: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(link.run(changed.put_nowait))
    try:
        world = wire.World(
            job="one", generation=4, phase="running", members=(wire.Seat(name="a", rank=0),), uncounted=restarts("outOfMemory")
        )
        server.worlds_to_tell.put_nowait(world)
        async with asyncio.timeout(10):
            assert await changed.get() == "one"
        assert link.worlds["one"].members == {"a"}
        assert link.worlds["one"].uncounted == restarts("outOfMemory")
        server.said = asyncio.Queue()
        assert server.open is not None
        server.open()
        async with asyncio.timeout(10):
            assert {(await server.said.get()).members for _ in range(2)} == {("a",), ("z",)}
    finally:
        running.cancel()
    await link.forget("one")
    assert server.forgotten == ["one"]
    assert "one" not in link.worlds
