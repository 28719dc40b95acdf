"""A bug in the engine raises in a decision: the job's timer goes on, nothing is lost silently, and no other job notices."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from elastic.membership.wire import Beat, Expectation, Held, Join, Ready, View
from elastic_training.rendezvous.engine.events import Event, Expected, Lost, Said, Tick
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.step import Effect, step_all
from elastic_training.rendezvous.server.fault import Undecided
from elastic_training.rendezvous.server.hub import Hub

sys.path.append(str(Path(__file__).parents[3] / "sim"))
from sim_time import run

SECRET = "hunter2"


class Bug(AssertionError):
    """The bug of the engine."""


class Engine:
    """The real engine with a bug: it raises while `is_bad` says so of the events of a decision."""

    def __init__(self) -> None:
        self.raised = 0
        self.is_bad: Callable[[tuple[Event, ...]], bool] = lambda events: False

    def step_all(self, job: JobState, events: Iterable[Event], now: float) -> tuple[JobState, tuple[Effect, ...]]:
        events = tuple(events)
        if job.uid == "job" and self.is_bad(events):
            self.raised += 1
            raise Bug("a bug in the engine")
        return step_all(job, events, now)

    def break_next(self, times: int, kind: type[Event] = object) -> None:  # type: ignore[assignment]
        left = [times]

        def is_bad(events: tuple[Event, ...]) -> bool:
            if left[0] and any(isinstance(event, kind) for event in events):
                left[0] -= 1
                return True
            return False

        self.is_bad = is_bad


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(Hub, "step_all", staticmethod(engine.step_all))
    return engine


class Agent:
    """A member that presents itself again whenever its connection is closed, and beats."""

    def __init__(self, hub: Hub, name: str, *, uid: str = "job") -> None:
        self.hub, self.uid, self.name = hub, uid, name
        self.incarnation = f"{name}/1"
        self.held: Held | None = None
        self.is_ready = True
        self.connections = 0
        self.stopped_at: list[int] = []
        self.is_dead = False
        self.views: list[View] = []
        self.connect()

    def connect(self) -> None:
        if not self.is_dead:
            self.connections += 1
            message = Join(incarnation=self.incarnation, held=self.held, ready=self.is_ready, store=f"{self.name}:1", trouble=SECRET)
            self.hub.attach(self.uid, name=self.name, link=self, message=message)

    def send(self, view: View) -> None:
        self.views.append(view)
        if self.is_ready and view.generation > (self.held.generation if self.held is not None else 0):
            self.held = Held(id=view.id, generation=view.generation, rank=view.rank, size=view.size, store=view.store)
            self.is_ready = False
        elif view.reform and not self.is_ready and self.held is not None:
            self.stopped_at.append(self.held.generation)
            self.is_ready = True
            self.hub.said(self.uid, name=self.name, incarnation=self.incarnation, message=Ready(after=self.held.generation, store="s:1"))

    def end(self, reason: str) -> None:
        raise AssertionError(f"{self.name} was refused: {reason}")

    def close(self) -> None:
        asyncio.get_running_loop().call_later(0.2, self.connect)

    def die(self) -> None:
        self.is_dead = True
        self.hub.detach(self.uid, name=self.name, incarnation=self.incarnation, link=self)

    async def beat(self) -> None:
        while not self.is_dead:
            await asyncio.sleep(5.0)
            self.hub.said(self.uid, name=self.name, incarnation=self.incarnation, message=Beat())


def expectation(*members: str, number: int = 1) -> Expectation:
    return Expectation(members=members, min=1, max=4, term=1, speaker="c", number=number)


def play(scene: Callable[[Hub, list[Agent]], Coroutine[Any, Any, None]], *, uid: str = "job") -> None:
    """Run a scene in virtual time with a world of two that trains."""

    async def main() -> None:
        hub = Hub(instance="s1", clock=asyncio.get_running_loop().time)
        hub.expect(uid, expectation("w0", "w1"))
        agents = [Agent(hub, "w0", uid=uid), Agent(hub, "w1", uid=uid)]
        beats = [asyncio.create_task(agent.beat()) for agent in agents]
        await asyncio.sleep(20)
        assert [agent.held.generation for agent in agents if agent.held is not None] == [1, 1]
        await scene(hub, agents)
        for task in beats:
            task.cancel()

    run(main())


def test_the_timer_of_a_job_goes_on_after_a_decision_that_raised(engine: Engine) -> None:
    """A tick raised once. The timer was never set again, so that a member that fell silent later was missed by nobody."""

    async def scene(hub: Hub, agents: list[Agent]) -> None:
        engine.break_next(1, Tick)
        await asyncio.sleep(10)
        assert engine.raised == hub.failed_decisions == 1
        agents[1].is_dead = True
        await asyncio.sleep(40)
        assert [agents[0].stopped_at, agents[0].held and agents[0].held.size] == [[1], 1]

    play(scene)


def test_a_lost_connection_is_not_forgotten_with_the_decision_that_raised(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        engine.break_next(1, Lost)
        agents[1].die()
        await asyncio.sleep(4)
        assert engine.raised == 1
        assert agents[0].held is not None
        assert agents[0].held.size == 1, "missed after its second to come back, not after 19 s of silence"

    play(scene)


def test_a_member_whose_message_was_lost_presents_itself_again_and_the_other_one_trains_on(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        hub.expect("job", expectation("w0", "w1", "w2", number=2))
        engine.break_next(1, Said)
        newcomer = Agent(hub, "w2")
        await asyncio.sleep(5)
        assert engine.raised == 1
        assert (newcomer.connections, newcomer.held and newcomer.held.size) == (2, 3)
        assert [agent.connections for agent in agents] == [1, 1]

    play(scene)


def test_an_expectation_is_acknowledged_only_once_it_is_applied(engine: Engine) -> None:
    """The controller got its 204 before the engine decided, and deleted pods that the engine still expected."""

    async def scene(hub: Hub, agents: list[Agent]) -> None:
        assert hub.expect("job", expectation("w0", "w1", "w2", number=2))
        engine.break_next(1, Expected)
        with pytest.raises(Undecided, match=r"^the expectation was not applied, because .* send it again$"):
            hub.expect("job", expectation("w0", number=3))
        job = hub.job("job")
        assert job is not None
        assert list(job.membership.expected) == ["w0", "w1", "w2"]
        assert hub.expect("job", expectation("w0", number=3))
        assert list(hub.job("job").membership.expected) == ["w0"]  # type: ignore[union-attr]

    play(scene)


def test_events_that_wait_are_decided_with_the_expectation_in_their_order(engine: Engine) -> None:
    decided: list[list[str]] = []

    def is_bad(events: tuple[Event, ...]) -> bool:
        decided.append([type(event).__name__ for event in events])
        return False

    async def scene(hub: Hub, agents: list[Agent]) -> None:
        engine.is_bad = is_bad
        hub.said("job", name="w0", incarnation="w0/1", message=Beat())
        agents[1].die()
        assert hub.expect("job", expectation("w0", number=2))
        assert decided == [["Said", "Lost", "Expected"]]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [] not in decided, "a decision on nothing"
        assert "Expected" not in str(decided[1:]), "nothing is decided twice"

    play(scene)


def test_another_job_does_not_notice_a_job_whose_decisions_all_raise(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        engine.is_bad = lambda events: True
        with pytest.raises(Undecided):
            hub.expect("job", expectation("x0"))
        stranger = Agent(hub, "x0")
        await asyncio.sleep(30)
        agents[1].die()
        await asyncio.sleep(4)
        assert agents[0].held is not None
        assert agents[0].held.size == 1
        stranger.is_dead = True

    play(scene, uid="other")


def test_the_log_has_the_last_events_with_their_ids_and_no_words_of_members(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        for number in range(200):
            hub.expect("job", expectation("w0", "w1", number=number + 2))
        hub.said("job", name="w0", incarnation="w0/1", message=Ready(after=0, trouble=SECRET, store=SECRET))
        await asyncio.sleep(1)
        engine.break_next(1, Lost)
        agents[1].die()
        await asyncio.sleep(0.1)

    with caplog.at_level(logging.ERROR):
        play(scene)
    record = next(record for record in caplog.records if record.message == "a decision about a job failed")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Bug)
    fields = record.__dict__
    assert fields["uid"] == "job"
    assert fields["events"] == ["lost w1 (w1/1)"]
    assert len(fields["story"]) == 64
    ids = [int(line.partition(" ")[0]) for line in fields["story"]]
    assert ids == sorted(set(ids))
    assert "lost w1" in fields["story"][-1]
    assert SECRET not in str(fields)


def test_a_hostile_member_cannot_make_the_log_line_long(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        engine.is_bad = lambda events: any(isinstance(event, Lost) for event in events)
        for number in range(300):
            name = f"{number}{'n' * 240}"
            held = Held(id="i" * 250, generation=2**52, rank=0, size=1)
            hub.said("job", name=name, incarnation="p" * 250, message=Join(incarnation="p" * 250, held=held, trouble="t" * 1024))
        agents[1].die()
        await asyncio.sleep(0.1)

    with caplog.at_level(logging.ERROR):
        play(scene)
    fields = caplog.records[-1].__dict__
    assert len(fields["events"]) == len(fields["story"]) == 64
    assert len(str(fields["events"]) + str(fields["story"])) < 64 * 2 * 300


class Controller:
    """Sends its expectation again when the server asks for it, or answered 500."""

    def __init__(self, hub: Hub, *members: str) -> None:
        self.hub, self.members, self.number = hub, members, 10
        self.faults: list[str] = []

    async def run(self) -> None:
        version, is_heard = self.hub.version, True
        while True:
            worlds = [world for world in self.hub.since(version) if world.job == "job"]
            version = self.hub.version
            if any(world.asks for world in worlds):
                is_heard = False
            for world in worlds:
                if world.fault != (self.faults[-1] if self.faults else ""):
                    self.faults.append(world.fault)
            if not is_heard:
                self.number += 1
                try:
                    is_heard = self.hub.expect("job", expectation(*self.members, number=self.number))
                except Undecided:
                    is_heard = False
            await asyncio.sleep(0.5)


def test_after_three_failed_decisions_in_a_row_the_world_is_adopted_as_after_a_restart_and_training_goes_on(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        following = asyncio.create_task(Controller(hub, "w0", "w1").run())
        engine.break_next(3)
        await asyncio.sleep(40)
        assert (engine.raised, hub.failed_decisions, hub.dropped_states) == (3, 3, 1)
        world = hub.world("job")
        assert world is not None
        assert (world.generation, world.phase, len(world.members), world.asks, world.fault) == (1, "running", 2, False, "")
        assert [agent.stopped_at for agent in agents] == [[], []]
        agents[1].die()
        await asyncio.sleep(10)
        assert agents[0].held is not None
        assert (agents[0].held.generation, agents[0].held.size) == (2, 1)
        following.cancel()

    play(scene)


def test_a_world_after_a_drop_has_an_id_and_a_number_of_its_own(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        following = asyncio.create_task(Controller(hub, "w0", "w1").run())
        first = agents[0].held
        engine.break_next(3)
        for agent in agents:
            agent.die()
        await asyncio.sleep(20)
        assert hub.dropped_states == 1
        newcomers = [Agent(hub, "w0"), Agent(hub, "w1")]
        await asyncio.sleep(20)
        assert first is not None
        second = newcomers[0].held
        assert second is not None
        assert second.generation == 2
        assert second.id != first.id
        following.cancel()

    play(scene)


def test_after_two_drops_the_job_is_left_undecided_for_a_minute_and_the_controller_hears_why(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        controller = Controller(hub, "w0", "w1")
        following = asyncio.create_task(controller.run())
        engine.is_bad = lambda events: True
        await asyncio.sleep(30)
        assert (engine.raised, hub.dropped_states) == (6, 1)
        world = hub.world("job")
        assert world is not None
        assert "cannot decide about this job because of a bug (Bug)" in world.fault
        with pytest.raises(Undecided, match="cannot decide about this job"):
            hub.expect("job", expectation("w0", "w1", number=99))
        await asyncio.sleep(25)
        assert engine.raised == 6, "nothing is decided for a minute"
        await asyncio.sleep(200)
        assert engine.raised <= 6 + 3 * 4, "three failed decisions a minute"
        engine.is_bad = lambda events: False
        await asyncio.sleep(100)
        world = hub.world("job")
        assert world is not None
        assert (world.phase, world.fault, len(world.members)) == ("running", "", 2)
        assert [bool(fault) for fault in controller.faults] == [True, False]
        assert [agent.stopped_at for agent in agents] == [[], []]
        following.cancel()

    play(scene)


def test_drops_that_are_far_apart_leave_no_job_undecided(engine: Engine) -> None:
    async def scene(hub: Hub, agents: list[Agent]) -> None:
        controller = Controller(hub, "w0", "w1")
        following = asyncio.create_task(controller.run())
        for _ in range(3):
            engine.break_next(3)
            await asyncio.sleep(700)
        assert (hub.dropped_states, controller.faults) == (3, [])
        assert [agent.stopped_at for agent in agents] == [[], []]
        following.cancel()

    play(scene)
