"""Test the controller's messages to the rendezvous server, and its reactions to the answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from job_builders import restarts

from elastic.api.book import Charge, Leaving
from elastic.api.words import Cause
from elastic.membership import bounds, wire
from elastic_training.controller.acting.link import RendezvousLink, expectation
from elastic_training.controller.deciding.actions import Budget, End, SetExpectation

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
        self.last_steps: dict[str, int] = {}
        self.worlds_to_tell: asyncio.Queue[wire.WorldReport] = asyncio.Queue()
        self.is_away = False
        self.open: Callable[[], None] | None = None
        self.is_listened_to = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None:
        await self.may_answer.wait()
        if self.is_away:
            raise RuntimeError("away")
        self.heard.append(expectation)
        self.said.put_nowait(expectation)

    async def forget(self, job_uid: str) -> int | None:
        if self.is_away:
            raise RuntimeError("away")
        self.forgotten.append(job_uid)
        return self.last_steps.pop(job_uid, None)

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[wire.WorldReport]:
        self.open = on_open
        self.is_listened_to.set()
        while True:
            yield await self.worlds_to_tell.get()


def test_times_become_durations_and_causes_the_servers_words() -> None:
    leave = Leaving(member="b", by=NOW + timedelta(seconds=12), cause="plan")
    said = expectation(
        tell(leaving=(leave,), ended=(End("a", "u", 3, Cause.OUT_OF_MEMORY),), restarts=(("outOfMemory", 2),), state_s=7.0), now=NOW
    )
    assert said.leaving == (wire.LeaveOrder(member="b", by_s=12.0, cause="plan"),)
    assert said.ended == (wire.Ended(member="a", pod_uid="u", run=3, cause="outOfMemory"),)
    assert said.restarts == {"outOfMemory": 2}
    assert said.state_s == 7.0


@pytest.fixture
async def started() -> AsyncIterator[Callable[..., RendezvousLink]]:
    running: list[asyncio.Task[None]] = []

    def start(server: Server, changed: Callable[[str], None] = lambda uid: None) -> RendezvousLink:
        link = RendezvousLink(server, errors=(RuntimeError,))
        running.append(asyncio.create_task(link.run(changed)))
        return link

    yield start
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def is_heard(link: RendezvousLink, told: SetExpectation) -> None:
    async with asyncio.timeout(10):
        while not link.tell("job", told, is_awaited=False):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_only_what_is_new_goes_over_the_wire(started: Callable[..., RendezvousLink]) -> None:
    server = Server()
    link = started(server)
    await is_heard(link, tell())
    await is_heard(link, tell())
    await is_heard(link, tell(members=("a", "b")))
    assert [said.members for said in server.heard] == [("a",), ("a", "b")]
    assert [said.number for said in server.heard] == [1, 2]
    assert len({said.speaker for said in server.heard}) == 1
    await is_heard(started(server), tell())
    assert server.heard[-1].speaker != server.heard[0].speaker, "another process counts anew"


async def test_nobody_waits_for_a_server_that_never_answers_and_the_job_is_looked_at_when_it_does(
    started: Callable[..., RendezvousLink],
) -> None:
    server, changed = Server(), asyncio.Queue[str]()
    server.may_answer.clear()
    link = started(server, changed.put_nowait)
    assert not link.tell("job", tell(), is_awaited=True)
    assert not link.tell("other", tell(), is_awaited=True)
    await asyncio.sleep(0.05)
    assert changed.empty()
    server.may_answer.set()
    async with asyncio.timeout(10):
        assert {await changed.get(), await changed.get()} == {"job", "other"}
    assert link.tell("job", tell(), is_awaited=True)


async def test_a_word_that_nobody_waits_for_makes_nobody_look(started: Callable[..., RendezvousLink]) -> None:
    server, changed = Server(), asyncio.Queue[str]()
    link = started(server, changed.put_nowait)
    assert not link.tell("job", tell(), is_awaited=False)
    await is_heard(link, tell())
    assert changed.empty()


async def test_a_word_that_was_overtaken_is_not_taken_for_the_newest(started: Callable[..., RendezvousLink]) -> None:
    server, changed = Server(), asyncio.Queue[str]()
    server.may_answer.clear()
    link = started(server, changed.put_nowait)
    assert not link.tell("job", tell(), is_awaited=True)
    await asyncio.sleep(0.01)
    assert not link.tell("job", tell(members=("a", "b")), is_awaited=True)
    server.may_answer.set()
    async with asyncio.timeout(10):
        assert await changed.get() == "job"
    assert [said.members for said in server.heard] == [("a",), ("a", "b")], "one at a time, the newest last"
    assert not link.tell("job", tell(), is_awaited=True)


async def test_a_server_that_is_away_is_told_when_it_is_back(started: Callable[..., RendezvousLink]) -> None:
    server = Server()
    link = started(server)
    server.is_away = True
    assert not link.tell("job", tell(), is_awaited=True)
    await asyncio.sleep(0.05)
    assert not link.tell("job", tell(), is_awaited=True)
    server.is_away = False
    await is_heard(link, tell())
    assert len(server.heard) == 1


async def test_a_server_that_comes_back_hears_the_newest_word_and_never_an_older_one_after_it(
    started: Callable[..., RendezvousLink],
) -> None:
    """The link repeated its last message while a reconcile sent a newer one, and the server kept the one that came last."""
    server = Server()
    link = started(server)
    await is_heard(link, tell(members=("a", "b")))
    server.is_away = True
    assert not link.tell("job", tell(members=("a",)), is_awaited=True)
    await asyncio.sleep(0.05)
    server.is_away = False
    async with asyncio.timeout(60):
        await server.is_listened_to.wait()
        assert server.open is not None
        server.open()
    await is_heard(link, tell(members=("a",)))
    assert [said.members for said in server.heard] == [("a", "b"), ("a",)]


async def test_a_word_of_which_nobody_knows_whether_it_arrived_is_followed_by_the_next_in_any_case(
    started: Callable[..., RendezvousLink],
) -> None:
    server = Server()
    link = started(server)
    await is_heard(link, tell())
    server.is_away = True
    assert not link.tell("job", tell(members=("a", "b")), is_awaited=True)
    await asyncio.sleep(0.05)
    server.is_away = False
    await is_heard(link, tell())
    assert [said.members for said in server.heard] == [("a",), ("a",)]


async def test_a_job_is_forgotten_when_the_server_has_heard_it_and_nothing_is_kept_of_it(started: Callable[..., RendezvousLink]) -> None:
    server = Server()
    link = started(server)
    await is_heard(link, tell())
    server.is_away = True
    link.forget("job")
    await asyncio.sleep(0.05)
    assert server.forgotten == []
    server.is_away = False
    async with asyncio.timeout(10):
        while not server.forgotten:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert "job" not in link._outbox
    link.forget("job")
    await asyncio.sleep(0.01)
    assert server.forgotten == ["job"]


async def test_a_controller_learns_that_the_server_has_forgotten_a_suspended_job_which_it_never_spoke_of(
    started: Callable[..., RendezvousLink],
) -> None:
    """The controller that suspended the job died before its message arrived; the next one must know before it resumes the job."""
    server, changed = Server(), asyncio.Queue[str]()
    server.is_away = True
    link = started(server, changed.put_nowait)
    link.forget("job", is_awaited=True)
    await asyncio.sleep(0.05)
    assert not link.forgotten
    server.is_away = False
    async with asyncio.timeout(10):
        assert await changed.get() == "job"
    assert link.forgotten == {"job"}
    server.worlds_to_tell.put_nowait(wire.WorldReport(job="job", generation=1, phase="running"))
    async with asyncio.timeout(10):
        assert await changed.get() == "job"
    assert not link.forgotten, "an agent of the former run has presented itself: the server must forget once more"
    link.forget("job", is_awaited=True)
    async with asyncio.timeout(10):
        assert await changed.get() == "job"
    link.tell("job", tell(), is_awaited=False)
    assert not link.forgotten
    link.forget("job", is_awaited=True)
    link.forget("job")
    await asyncio.sleep(0.05)
    assert not link.forgotten, "nothing is kept of a job that is gone"


async def test_a_server_that_asks_hears_the_newest_message_about_that_job_again(
    started: Callable[..., RendezvousLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link then also sends a message that waits for its next attempt."""
    monkeypatch.setattr("elastic_training.controller.acting.outbox.FIRST_BACK_OFF_S", 3600.0)
    monkeypatch.setattr("elastic_training.controller.acting.outbox.LONGEST_BACK_OFF_S", 3600.0)
    server = Server()
    link = started(server)
    await is_heard(link, tell())
    server.is_away = True
    link.tell("other", tell(members=("x",)), is_awaited=False)
    async with asyncio.timeout(10):
        while not link._outbox._failing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    server.is_away = False
    server.said = asyncio.Queue()
    server.worlds_to_tell.put_nowait(wire.WorldReport(job="job", generation=1, phase="running", asks=True))
    async with asyncio.timeout(10):
        assert {(await server.said.get()).members for _ in range(2)} == {("a",), ("x",)}
    server.worlds_to_tell.put_nowait(wire.WorldReport(job="unknown", generation=1, phase="running", asks=True))
    await asyncio.sleep(0.05)
    assert server.said.empty()


async def test_a_server_that_was_restarted_hears_every_expectation_again() -> None:
    server = Server()
    link = RendezvousLink(server, errors=(RuntimeError,))
    link.tell("one", tell(), is_awaited=True)
    link.tell("two", tell(members=("z",)), is_awaited=True)
    for _ in range(2):
        await server.said.get()
    changed: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(link.run(changed.put_nowait))
    try:
        world = wire.WorldReport(
            job="one",
            generation=4,
            phase="running",
            members=(wire.RankedMember(name="a", rank=0),),
            unacknowledged_restarts=restarts("outOfMemory"),
        )
        server.worlds_to_tell.put_nowait(world)
        async with asyncio.timeout(10):
            assert await changed.get() == "one"
        assert link.worlds["one"].members == {"a"}
        assert link.worlds["one"].unacknowledged_restarts == restarts("outOfMemory")
        server.said = asyncio.Queue()
        assert server.open is not None
        server.open()
        async with asyncio.timeout(10):
            assert {(await server.said.get()).members for _ in range(2)} == {("a",), ("z",)}
            link.forget("one")
            while not server.forgotten:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert server.forgotten == ["one"]
        assert "one" not in link.worlds
    finally:
        running.cancel()


async def heard(link: RendezvousLink, server: Server, changed: "asyncio.Queue[str]", *worlds: wire.WorldReport) -> None:
    """Wait until the link has heard of these, and of the one that follows them."""
    for world in (
        *worlds,
        wire.WorldReport(job="last", generation=link.worlds["last"].generation + 1 if "last" in link.worlds else 1, phase="running"),
    ):
        server.worlds_to_tell.put_nowait(world)
    async with asyncio.timeout(10):
        while await changed.get() != "last":
            pass


async def test_a_world_that_is_as_it_was_makes_nobody_look() -> None:
    server, changed = Server(), asyncio.Queue[str]()
    link = RendezvousLink(server, errors=(RuntimeError,))
    running = asyncio.create_task(link.run(changed.put_nowait))
    try:
        world = wire.WorldReport(job="one", generation=4, phase="running", members=(wire.RankedMember(name="a", rank=0),))
        server.worlds_to_tell.put_nowait(world)
        async with asyncio.timeout(10):
            assert await changed.get() == "one"
        again = replace(world, leaving=("b",))
        for said in (world, again, replace(world, generation=5)):
            server.worlds_to_tell.put_nowait(said)
        async with asyncio.timeout(10):
            assert await changed.get() == "one"
        assert link.worlds["one"].generation == 5, "what it was woken for is the world that differs"
        assert changed.empty()
    finally:
        running.cancel()


async def test_workers_that_wait_for_a_world_are_known(started: Callable[..., RendezvousLink]) -> None:
    """Workers at the rendezvous of a job without a world were said not to have come."""
    server, changed = Server(), asyncio.Queue[str]()
    link = started(server, changed.put_nowait)
    server.worlds_to_tell.put_nowait(wire.WorldReport(job="one", generation=4, phase="forming", waiting=("a", "b")))
    async with asyncio.timeout(10):
        assert await changed.get() == "one"
    assert link.worlds["one"].waiting == {"a", "b"}


async def test_a_world_that_cannot_be_read_keeps_what_was_known_and_says_so() -> None:
    server, changed = Server(), asyncio.Queue[str]()
    link = RendezvousLink(server, errors=(RuntimeError,))
    running = asyncio.create_task(link.run(changed.put_nowait))
    try:
        await heard(link, server, changed, wire.WorldReport(job="one", generation=4, phase="running"))
        await heard(link, server, changed, wire.unreadable("one", "it is too long"), wire.unreadable("new", "it is too long"))
        assert (link.worlds["one"].generation, link.worlds["one"].phase) == (4, "running")
        assert "it is too long" in link.worlds["one"].trouble
        assert "it is too long" in link.worlds["new"].trouble
        await heard(link, server, changed, wire.WorldReport(job="one", generation=5, phase="running"))
        assert (link.worlds["one"].generation, link.worlds["one"].trouble) == (5, "")
    finally:
        running.cancel()


async def test_the_words_of_an_earlier_server_do_not_count_for_the_next() -> None:
    server, changed = Server(), asyncio.Queue[str]()
    link = RendezvousLink(server, errors=(RuntimeError,))
    running = asyncio.create_task(link.run(changed.put_nowait))
    try:
        await heard(link, server, changed, wire.WorldReport(job="one", generation=4, phase="running"))
        known = link.worlds
        assert server.open is not None
        server.open()
        assert known == {}, "and a reader sees it"
    finally:
        running.cancel()


async def test_a_world_stands_since_it_was_formed_or_first_heard_of_by_our_own_clock() -> None:
    server, heard = Server(), asyncio.Queue[str]()
    clock = [NOW]
    link = RendezvousLink(server, errors=(RuntimeError,), clock=lambda: clock[0])
    running = asyncio.create_task(link.run(heard.put_nowait))

    async def hears(generation: int, standing: wire.StandingWorld | None) -> datetime | None:
        seat = wire.RankedMember(name="a", rank=0, incarnation="uid/1")
        words = f"something new at {clock[0]}"
        world = wire.WorldReport(job="one", generation=generation, phase="running", members=(seat,), standing=standing, reason=words)
        server.worlds_to_tell.put_nowait(world)
        await heard.get()
        return link.worlds["one"].since

    try:
        async with asyncio.timeout(10):
            assert await hears(1, wire.StandingWorld(size=1, age_s=60.0)) == NOW - timedelta(seconds=60), (
                "a new controller does not count anew"
            )
            clock[0] += timedelta(seconds=5)
            assert await hears(1, wire.StandingWorld(size=1, age_s=65.1, has_stepped=True)) == NOW - timedelta(seconds=60), (
                "as first heard of"
            )
            assert await hears(2, None) == clock[0], "an older server"
            clock[0] += timedelta(seconds=5)
            assert await hears(2, None) == NOW + timedelta(seconds=5)
            assert await hears(3, wire.StandingWorld(size=2, age_s=1.0, has_stepped=True)) == NOW + timedelta(seconds=9)
        known = link.worlds["one"]
        assert (known.size, known.has_stepped, known.incarnations) == (2, True, {"a": "uid/1"})
    finally:
        running.cancel()


def test_a_number_that_is_too_large_for_a_message_is_told_as_the_largest() -> None:
    """`maxRestarts` and `scaleInGraceSeconds` may be 2^31 - 1, and a server that refuses each word about the job keeps it waiting."""
    most, long_ago = 2**31 - 1, datetime(2000, 1, 1, tzinfo=UTC)
    told = tell(
        grace_s=float(most),
        leaving=(Leaving(member="a", by=datetime.max.replace(tzinfo=UTC), cause="plan"),),
        ended=(End("a", "u", most, Cause.USER),),
        budget=Budget(max_restarts=most, by_cause=(("user", most),), without_progress=most, window_s=most, hang_s=most),
        charged=(Charge(cause="user", at=long_ago),),
    )
    said = wire.Decoder[wire.Expectation](wire.Expectation).decode(wire.encode(expectation(told, now=NOW)))
    assert (said.budget.max_restarts, said.grace_s, said.charged[0].age_s) == (
        bounds.MOST_COUNTED,
        bounds.MOST_SECONDS,
        bounds.MOST_SECONDS,
    )
