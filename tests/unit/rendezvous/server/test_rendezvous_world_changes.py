"""Changes instead of whole worlds: a controller knows the same, and a job's line costs what changed."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.installation import ensure_installation
from elastic.membership import protocol
from elastic.membership.client import RendezvousClient
from elastic.membership.codec import unpacked
from elastic.membership.tokens import control_token
from elastic.membership.wire import Expectation, Held, Join, RankedMember, Restart, StandingWorld, View, WorldReport
from elastic.membership.world_changes import MOST_RESTARTS, ChangingWorlds, Misfit, WorldChange, changes
from elastic_training.rendezvous.server import http
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.world_lines import JOB_BYTES, JOB_BYTES_PER_S, WorldLines

KEY = b"k" * 32


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Wire:
    def send(self, view: View) -> None: ...

    def end(self, reason: str) -> None: ...

    def close(self) -> None: ...


def restarts(*numbers: int, cause: str = "user") -> tuple[Restart, ...]:
    return tuple(Restart(id=f"w/{n}", generation=1, cause=cause) for n in numbers)


def heard(worlds: ChangingWorlds, lines: list[bytes]) -> WorldReport | None:
    """Return the world after these lines, as a controller reads them."""
    last = None
    for line in lines:
        last = worlds.take(msgspec.json.decode(line, type=WorldChange))
    return last


names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6).map(tuple)
some_restarts = st.lists(
    st.builds(Restart, id=st.sampled_from("stuvwxyz"), generation=st.just(1), cause=st.sampled_from(["user", "disruption"])),
    unique_by=lambda entry: entry.id,
    max_size=8,
).map(tuple)
some_worlds = st.builds(
    WorldReport,
    job=st.just("job"),
    generation=st.integers(0, 3),
    phase=st.sampled_from(["empty", "forming", "running"]),
    members=names.map(lambda names: tuple(RankedMember(name=name, rank=rank) for rank, name in enumerate(names))),
    waiting=names,
    restarts=st.dictionaries(st.sampled_from(["user", "plan"]), st.integers(0, 2)),
    unacknowledged_restarts=some_restarts,
    fruitless=st.none() | st.integers(0, 2),
    standing=st.none() | st.builds(StandingWorld, size=st.integers(1, 3), age_s=st.integers(0, 3), has_stepped=st.booleans()),
    asks=st.booleans(),
)


def aged(world: WorldReport, age_s: float) -> WorldReport:
    return world if world.standing is None else replace(world, standing=replace(world.standing, age_s=age_s))


@given(st.lists(some_worlds, min_size=1, max_size=6))
def test_a_controller_that_hears_changes_knows_what_one_that_hears_worlds_knows(told: list[WorldReport]) -> None:
    worlds, before, lines = ChangingWorlds(), None, 0
    known: WorldReport | None = None
    for world in told:
        sent = [msgspec.json.encode(change) for change in changes(before, world, after=lines)]
        known = heard(worlds, sent) if sent else known
        assert known is not None
        assert aged(known, 0.0) == aged(world, 0.0)
        if before is None or before.generation != world.generation:
            assert known == world, "a new world's age is told"
        before, lines = world, lines + len(sent)


def test_a_question_to_the_controller_is_repeated_though_its_answer_was_told_to_nobody() -> None:
    """A slow stream told neither that the question was answered nor that the state was dropped again, so the job waited for its word."""
    asking = WorldReport(job="job", generation=1, phase="empty", asks=True)
    worlds = ChangingWorlds()
    (whole,) = changes(None, asking, after=0)
    worlds.take(whole)
    (again,) = changes(asking, asking, after=1)
    assert worlds.take(again) == asking
    (answered,) = changes(asking, replace(asking, asks=False), after=2)
    assert worlds.take(answered) == replace(asking, asks=False)


@given(some_restarts, some_restarts, st.integers(1, 3))
def test_restarts_in_pieces_of_any_size_come_to_the_same(before: Any, after: Any, most: int) -> None:
    worlds = ChangingWorlds()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elastic.membership.world_changes.MOST_RESTARTS", most)
        old, new = (WorldReport(job="job", generation=1, phase="running", unacknowledged_restarts=one) for one in (before, after))
        first = [msgspec.json.encode(change) for change in changes(None, old, after=0)]
        assert heard(worlds, first) == old
        second = [msgspec.json.encode(change) for change in changes(old, new, after=len(first))]
        assert (heard(worlds, second) if second else old) == new


def test_a_world_with_thousands_of_restarts_comes_in_short_lines_and_is_known_with_the_last() -> None:
    lost = restarts(*range(4000))
    world = WorldReport(job="job", generation=2, phase="running", unacknowledged_restarts=lost)
    worlds = ChangingWorlds()
    lines = list(changes(None, world, after=0))
    assert [len(line.added) for line in lines] == 15 * [MOST_RESTARTS] + [4000 - 15 * MOST_RESTARTS]
    assert [worlds.take(line) for line in lines[:-1]] == 15 * [None], "a controller that booked a part would take the rest for settled"
    assert worlds.take(lines[-1]) == world
    booked = replace(world, unacknowledged_restarts=(*lost[3000:], *restarts(5000)))
    (line,) = changes(world, booked, after=len(lines))
    assert (line.fresh, len(line.dropped), unpacked(line.added)) == (False, 3000, restarts(5000)), "what was told is not told again"
    assert worlds.take(line) == booked


def test_lines_that_do_not_follow_one_another_do_not_fit() -> None:
    one = WorldReport(job="job", generation=1, phase="running", unacknowledged_restarts=restarts(1))
    other = replace(one, generation=2)
    (whole,), (change,) = changes(None, one, after=0), changes(one, other, after=1)
    worlds = ChangingWorlds()
    with pytest.raises(Misfit, match="a change of job job follows 1 lines, and 0 have come"):
        worlds.take(change)
    worlds.take(whole)
    worlds.take(change)
    with pytest.raises(Misfit):
        worlds.take(change)
    worlds.take(whole)
    with pytest.raises(Misfit, match="it drops restart 7 of 1"):
        worlds.take(WorldChange(job="job", after=1, dropped=(7,)))


def hub_with(clock: Clock, *jobs: str) -> Hub:
    hub = Hub(instance="s1", clock=clock)
    for uid in jobs:
        hub.expect(uid, Expectation(members=("w0",), min=1, max=8192, floor=1, number=1))
    return hub


async def join(hub: Hub, uid: str, name: str, *unacknowledged: Restart) -> None:
    held = Held(id="w", generation=1, rank=0, size=1, unacknowledged_restarts=unacknowledged) if unacknowledged else None
    hub.attach(uid, name=name, link=Wire(), message=Join(incarnation=f"{name[:100]}/1", held=held))
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_the_presented_state_of_members_is_sent_once_and_not_with_each_change() -> None:
    """Each member that came and went made the server encode the job's 16,000 restarts, decode them again, and send them."""
    clock = Clock()
    hub = hub_with(clock, "fat")
    lines = WorldLines(hub, clock=clock, only_changes=True)
    whole = WorldLines(hub, clock=clock, only_changes=False)
    fat = tuple(Restart(id=f"{n:-<500}", generation=1, cause="disruption") for n in range(250))
    await join(hub, "fat", "w0", *fat)
    worlds = ChangingWorlds()
    first = list(lines.news())
    assert 130_000 < sum(map(len, first)) < 200_000
    heard(worlds, first)
    for number in range(20):
        await join(hub, "fat", f"x{number}")
        (line,) = lines.news()
        assert len(line) < 1000
        assert aged(heard(worlds, [line]) or WorldReport(job="", generation=0, phase=""), 0.0) == aged(hub.world("fat") or _never(), 0.0)
    assert sum(map(len, whole.news())) > 130_000
    assert list(lines.news()) == []
    hub.forget("fat")
    (gone,) = lines.news()
    assert msgspec.json.decode(gone, type=WorldChange).forgotten


def _never() -> WorldReport:
    raise AssertionError("the job is known")


class Told:
    """Stands for the hub of jobs whose worlds are given."""

    def __init__(self) -> None:
        self.version = 0
        self.worlds: dict[str, WorldReport] = {}

    def changed_since(self, version: int) -> tuple[list[str], list[str]]:
        return (list(self.worlds) if version < self.version else []), []

    def world(self, uid: str) -> WorldReport | None:
        return self.worlds.get(uid)

    def change(self, uid: str, *waiting: str) -> None:
        self.version += 1
        self.worlds[uid] = WorldReport(job=uid, generation=self.version, phase="forming", waiting=waiting)


@pytest.mark.parametrize("only_changes", [True, False])
def test_a_job_whose_lines_are_long_waits_and_its_neighbour_does_not(*, only_changes: bool) -> None:
    clock, hub = Clock(), Told()
    lines = WorldLines(hub, clock=clock, only_changes=only_changes)  # type: ignore[arg-type]

    def jobs_and_bytes() -> dict[str, int]:
        return {msgspec.json.decode(line)["job"]: len(line) for line in lines.news()}

    sent = 0
    for turn in range(100):
        hub.change("fat", *(f"{turn}-{n:x<240}" for n in range(500)))
        hub.change("good", f"w{turn}")
        told = jobs_and_bytes()
        assert 0 < told["good"] < 100
        sent += told.get("fat", 0)
    assert lines.is_late
    assert JOB_BYTES <= sent < JOB_BYTES + 200_000
    assert jobs_and_bytes() == {}
    clock.now += 1.0
    assert list(jobs_and_bytes()) == ["fat"], f"it has {JOB_BYTES_PER_S} bytes again, and its newest world is told"
    assert not lines.is_late


@pytest.mark.parametrize("only_changes", [True, False])
def test_a_world_that_no_controller_could_read_is_not_sent_and_logged_once(*, only_changes: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Every change of such a job wrote the same line into the log."""
    hub = Told()
    lines = WorldLines(hub, clock=Clock(), only_changes=only_changes)  # type: ignore[arg-type]

    def told(generation: int) -> str:
        hub.change("job")
        hub.worlds["job"] = replace(hub.worlds["job"], generation=generation)
        (line,) = lines.news()
        return str(msgspec.json.decode(line)["phase"])

    assert [told(1), *(told(2**53 + extra) for extra in (1, 2, 3)), told(2)] == ["forming", *["unreadable"] * 3, "forming"]
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["a world cannot be sent to the controller"]


async def test_other_work_has_its_turn_between_lines() -> None:
    class Response:
        """Takes everything at once."""

        taken = 0

        async def write(self, line: bytes) -> None:
            self.taken += len(line)

    response, seen = Response(), []

    async def neighbour() -> None:
        while True:
            seen.append(response.taken)
            await asyncio.sleep(0)

    other = asyncio.create_task(neighbour())
    await http._write(response, (b"x" * 10_000 for _ in range(1000)))  # type: ignore[arg-type]
    other.cancel()
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 2 * http.BYTES_A_TURN


async def some_server(tmp_path: Any, hub: Hub, clock: Callable[[], float]) -> TestServer:
    face = Face(hub=hub, gate=Gate(keys=lambda: [KEY], reviewer=None, accounts=()), clock=clock, metrics=lambda: (b"", ""))
    server = TestServer(face.application())
    await server.start_server()
    return server


def client_of(server: TestServer, tmp_path: Any) -> RendezvousClient:
    ensure_installation(tmp_path, addresses=())

    async def token() -> str:
        return control_token(KEY)

    return RendezvousClient(str(server.make_url("")), token, (tmp_path / "ca.crt").read_text())


@pytest.mark.parametrize(("mine", "theirs"), [("1.2", "1.2"), ("1.1", "1.2"), ("1.2", "1.1"), (None, "1.2"), ("1.2", None)])
async def test_controllers_and_servers_of_neighbouring_releases_understand_each_other(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, mine: str | None, theirs: str | None
) -> None:
    """A server of the release before ignores the version of the controller, and sends whole worlds."""
    clock = Clock()
    hub = hub_with(clock, "job")
    takes_changes = protocol.takes_changes
    is_new_server = theirs is not None and takes_changes(theirs)

    async def headers(client: RendezvousClient) -> dict[str, str]:
        return {"Authorization": f"Bearer {control_token(KEY)}"} | ({protocol.HEADER: mine} if mine is not None else {})

    async def name(self: object, request: web.Request, response: web.StreamResponse) -> None:
        if theirs is not None:
            response.headers[protocol.HEADER] = theirs

    def of_peer(named: str | None) -> bool:
        """Answer for a server of the release before, which asks for nothing, and for the client, which asks about the server."""
        return takes_changes(named) and is_new_server and takes_changes(mine)

    monkeypatch.setattr(RendezvousClient, "_headers", headers)
    monkeypatch.setattr("elastic_training.rendezvous.server.versions.Versions.name", name)
    monkeypatch.setattr(protocol, "takes_changes", of_peer)
    server = await some_server(tmp_path, hub, clock)
    seen: list[WorldReport] = []
    async with asyncio.timeout(60), client_of(server, tmp_path) as client:
        stream = client.worlds()
        async for world in stream:
            seen.append(world)
            if len(seen) == 1:
                await join(hub, "job", "w0")
            if world.phase == "running":
                break
        await stream.aclose()  # type: ignore[attr-defined]
    hub.forget("job")
    await server.close()
    assert seen[-1].members == (RankedMember(name="w0", rank=0, incarnation="w0/1"),)


@pytest.fixture
async def odd_server() -> AsyncIterator[tuple[TestServer, list[int]]]:
    """Serve a line that does not fit to the first controller that comes."""
    opened: list[int] = []

    async def lines(request: web.Request) -> web.StreamResponse:
        opened.append(1)
        response = web.StreamResponse(headers={protocol.HEADER: "1.2"})
        await response.prepare(request)
        await response.write(b'{"job":"odd","generation":9007199254740993}\n{"job":"odd","after":1,"generation":2}\n')
        await response.write(b'{"job":"good","generation":1,"phase":"running","waiting":["w0"]}\n')
        missing = 2 if len(opened) == 1 else 1
        await response.write(b'{"job":"good","after":%d,"generation":%d}\n' % (missing, len(opened)))
        await asyncio.sleep(60)
        return response

    app = web.Application()
    app.router.add_get("/v1/worlds", lines)
    server = TestServer(app)
    await server.start_server()
    yield server, opened
    await server.close()


async def test_a_change_that_does_not_fit_opens_the_stream_again_and_an_unreadable_one_does_not(
    tmp_path: Any, odd_server: tuple[TestServer, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.membership.client.LONGEST_BACK_OFF_S", 0.01)
    server, opened = odd_server
    seen: list[tuple[str, str, int, tuple[str, ...]]] = []
    async with asyncio.timeout(60), client_of(server, tmp_path) as client:
        stream = client.worlds()
        async for world in stream:
            seen.append((world.job, world.phase, world.generation, world.waiting))
            if world.generation == 2:
                break
        await stream.aclose()  # type: ignore[attr-defined]
    once = [("odd", "unreadable", 0, ()), ("good", "running", 1, ("w0",))]
    assert seen == [*once, *once, ("good", "running", 2, ("w0",))]
    assert len(opened) == 2
