"""The hub around the machines: connections, events of one turn, and the clock."""

import asyncio

import pytest

from elastic.membership.training import Report
from elastic.membership.wire import Beat, Budget, Expectation, Held, Join, RankedMember, Ready, StandingWorld, View
from elastic_training.rendezvous.server.hub import UNEXPECTED, Full, Hub
from elastic_worker.agent.presence import JOB_OVER


class Wire:
    """A member's connection that keeps what it was sent."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.ended = ""
        self.is_closed = False

    def send(self, view: View) -> None:
        self.views.append(view)

    def end(self, reason: str) -> None:
        self.ended = reason

    def close(self) -> None:
        self.is_closed = True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(clock: Clock) -> Hub:
    return Hub(instance="s1", clock=clock)


def attach(hub: Hub, name: str, incarnation: str = "", *, uid: str = "job") -> Wire:
    wire = Wire()
    hub.attach(uid, name=name, link=wire, message=Join(incarnation=incarnation or f"{name}/1", store=f"{name}:1"))
    return wire


async def turn() -> None:
    """Let what was called soon happen."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_messages_of_one_turn_of_the_loop_are_decided_on_together(hub: Hub) -> None:
    hub.expect("job", Expectation(members=("w0", "w1"), min=1, max=2))
    seen = hub.version
    first, second = attach(hub, "w0"), attach(hub, "w1")
    assert hub.version == seen
    await turn()
    assert [wire.views[-1].generation for wire in (first, second)] == [1, 1]
    assert len(first.views) == 1, "no intermediate state is told"


async def test_an_old_incarnation_cannot_push_the_new_one_out(hub: Hub) -> None:
    hub.expect("job", Expectation(members=("w0",), min=1, max=1))
    old = attach(hub, "w0", "pod/1")
    await turn()
    new = attach(hub, "w0", "pod/2")
    await turn()
    assert old.ended == "a newer incarnation of this member has come"
    back = attach(hub, "w0", "pod/1")
    await turn()
    assert back.ended == "a newer incarnation of this member has come"
    assert new.ended == ""
    assert new.views[-1].generation == 2


async def test_a_second_connection_of_the_same_incarnation_closes_the_first_without_ending_the_agent(hub: Hub) -> None:
    hub.expect("job", Expectation(members=("w0",), min=1, max=1))
    first = attach(hub, "w0")
    await turn()
    second = attach(hub, "w0")
    await turn()
    assert (first.is_closed, first.ended) == (True, "")
    hub.detach("job", name="w0", incarnation="w0/1", link=first)
    await turn()
    assert second.views[-1].generation == 1
    world = hub.world("job")
    assert world is not None
    assert world.phase == "running"


async def test_the_controller_hears_what_changed_since_and_of_what_was_forgotten(hub: Hub) -> None:
    hub.expect("job", Expectation(members=("w0",), min=1, max=1))
    hub.expect("other", Expectation(members=("w0",), min=1, max=1))
    await turn()
    seen = hub.version
    assert {world.job for world in hub.since(-1)} == {"job", "other"}
    wire = attach(hub, "w0")
    await turn()
    assert [(world.job, world.phase) for world in hub.since(seen)] == [("job", "running")]
    seen = hub.version
    hub.said("job", name="w0", incarnation="w0/1", message=Beat())
    await turn()
    assert hub.since(seen) == [], "a beat is no news"
    hub.forget("job")
    assert [(world.job, world.forgotten) for world in hub.since(seen)] == [("job", True)]
    assert wire.ended == JOB_OVER
    hub.said("job", name="w0", incarnation="w0/1", message=Ready())
    await turn()
    assert hub.world("job") is None


async def test_the_caller_that_has_a_job_forgotten_hears_its_last_step(hub: Hub) -> None:
    """The controller hears no step of a world that works up to the job's end before that end."""
    hub.expect("job", Expectation(members=("w0",), min=1, max=1))
    attach(hub, "w0")
    await turn()
    for step in (1, 40):
        hub.report("job", Report(member="w0", generation=1, step=step))
        await turn()
    assert [world.highest for world in hub.since(-1)] == [None]
    assert hub.forget("job") == 40
    assert hub.forget("job") is None


async def test_a_job_that_was_forgotten_has_no_world_with_the_id_of_a_former_one(hub: Hub) -> None:
    """It was suspended before the status had its newest generation, and counted on from the one before."""
    ids = []
    for start in range(3):
        hub.expect("job", Expectation(members=("w0",), min=1, max=1))
        attach(hub, "w0", f"w0/{start}")
        await turn()
        known = hub.job("job")
        assert known is not None
        assert known.membership.world is not None
        ids.append(known.membership.world.id)
        hub.forget("job")
    assert len(set(ids)) == 3, ids
    assert ids[0] == "1-s1"


async def test_only_the_newest_report_of_a_member_is_kept_and_none_of_a_stranger(hub: Hub, clock: Clock) -> None:
    for name in ("w0", "w1"):
        hub.report("job", Report(member=name, step=9))
    assert hub.jobs() == [], "a report makes no job"
    attach(hub, "w0")
    await turn()
    for number in range(100):
        hub.report("job", Report(member=f"stranger-{number}", step=9))
    for step in range(3):
        hub.report("job", Report(member="w0", step=step))
    clock.now += 5
    (signal,) = hub.signals("job")
    assert (signal.member, signal.step, signal.age_s) == ("w0", 2, 5.0)
    assert hub.signals("unknown") == []


async def test_the_machine_hears_of_steps_that_lead_on_and_the_controller_only_of_what_that_changes(hub: Hub) -> None:
    hub.expect("job", Expectation(members=("w0",), budget=Budget(without_progress=3), fruitless=1, step=9))
    hub.attach("job", name="w0", link=Wire(), message=Join(incarnation="w0/1"))
    await turn()
    hub.report("job", Report(member="w0", generation=1, step=8))
    await turn()
    seen = hub.version
    for step in (9, 8):
        hub.report("job", Report(member="w0", generation=1, step=step))
        await turn()
    assert hub.since(seen) == []
    hub.report("job", Report(member="w0", generation=1, step=10))
    await turn()
    assert [world.fruitless for world in hub.since(seen)] == [0]
    job = hub.job("job")
    assert job is not None
    assert (job.progress.step, job.progress.step_in_world) == (10, 10)


async def test_a_word_that_changes_nothing_is_no_news(hub: Hub) -> None:
    expectation = Expectation(members=("w0",), min=1, max=1)
    hub.expect("job", expectation)
    attach(hub, "w0")
    await turn()
    seen = hub.version
    for number in range(3):
        hub.expect("job", Expectation(members=("w0",), min=1, max=1, number=number))
        await turn()
    assert hub.version == seen


async def test_a_server_that_was_stopped_and_goes_on_takes_nobody_for_silent(hub: Hub, clock: Clock) -> None:
    """Stopped for 25 s, it took all members of each world for silent before it read what they had sent meanwhile."""
    hub.expect("job", Expectation(members=("w0", "w1", "w2"), min=1, max=3))
    wires = [attach(hub, name) for name in ("w0", "w1", "w2")]
    await turn()
    clock.now += 25
    hub.detach("job", name="w2", incarnation="w2/1", link=wires[2])  # it had given the server up, and will come back
    hub._tick(hub._jobs["job"])
    await turn()
    clock.now += 0.4
    hub._tick(hub._jobs["job"])
    await turn()
    world = hub.world("job")
    assert world is not None
    assert (world.phase, len(world.members), world.restarts) == ("running", 3, {})
    assert not any(wire.is_closed for wire in wires)


async def test_members_that_nobody_expects_are_turned_away_once_there_are_many(hub: Hub) -> None:
    """A worker's token opens as many names as its holder likes to make up."""
    hub.expect("job", Expectation(members=("w0",), min=1, max=1))
    for number in range(UNEXPECTED + 1):
        attach(hub, f"stranger-{number}")
    await turn()
    with pytest.raises(Full, match="not one that the controller expects"):
        attach(hub, "one-more")
    assert attach(hub, "stranger-0").ended == "", "who is here may come back"
    await turn()
    expected = attach(hub, "w0")
    await turn()
    assert expected.views[-1].generation == 1


async def test_a_listener_that_begins_hears_of_no_job_that_is_gone_and_one_that_goes_on_hears_in_order(hub: Hub) -> None:
    for uid in ("a", "b", "c"):
        hub.expect(uid, Expectation(members=("w0",)))
        await turn()
    seen = hub.version
    hub.forget("b")
    attach(hub, "w0", uid="a")
    await turn()
    assert [world.job for world in hub.since(-1)] == ["c", "a"]
    assert [(world.job, world.forgotten) for world in hub.since(seen)] == [("a", False), ("b", True)]


async def test_the_controller_hears_of_the_first_step_of_each_world_also_of_one_that_an_earlier_server_formed(
    hub: Hub, clock: Clock
) -> None:
    hub.expect("job", Expectation(members=("w0", "w1"), step=9))
    held = Held(id="4-s0", generation=4, rank=1, size=2)
    hub.attach("job", name="w1", link=Wire(), message=Join(incarnation="uid/1", held=held, ready=False))
    await turn()
    world = hub.world("job")
    assert world is not None
    assert world.members == (RankedMember(name="w1", rank=1, incarnation="uid/1"),)
    assert world.standing == StandingWorld(size=2, age_s=0.0)
    seen = hub.version
    for step in (10, 11):
        clock.now += 7.0
        hub.report("job", Report(member="w1", generation=4, step=step))
        await turn()
    assert hub.version == seen + 1, "one step says it"
    assert [world.standing for world in hub.since(seen)] == [StandingWorld(size=2, age_s=14.0, has_stepped=True)]
