"""The controller's side of a rendezvous in an etcd, in virtual time beside deciding agents (etcd_agents): what it reports,
what it writes, and what becomes of it when the etcd is away, silent or hostile.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pytest
from etcd_agents import Job as Agents
from etcd_store import JOB, PREFIX, TOKEN, InMemory

from elastic.etcd import follower, room
from elastic.etcd.follower import CHECK_S, FIRST_PATIENCE_S, LEASE_S, NOTICE_S, PATIENCE_S
from elastic.etcd.membership import EtcdMembership
from elastic.etcd.place import Place
from elastic.etcd.store import Away, Entry, Store
from elastic.membership import wire
from elastic.membership.phases import WorldPhase
from elastic_worker.etcd.records import EXPECTED

sys.path.append(str(Path(__file__).parents[1] / "sim"))
from sim_time import run

PLACE = Place(endpoints=("etcd:2379",), prefix=PREFIX)


class Town:
    """Agents, an etcd, and a controller that follows the job."""

    all: ClassVar[list["Town"]] = []

    def __init__(self, **rules: Any) -> None:
        self.all.append(self)
        self.job = Agents(**rules)
        self.way = InMemory(self.job.etcd)
        self.worlds: list[wire.World] = []
        self.membership = EtcdMembership(
            visit=self.visit, token_for=lambda uid: TOKEN, emit=self.worlds.append, clock=self.now, worked_s=lambda: 0.0
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def visit(self, place: Place) -> Store:
        return self.way

    @property
    def world(self) -> wire.World:
        return self.worlds[-1]

    async def expect(self, *members: str, **fields: Any) -> None:
        await self.membership.expect(JOB, PLACE, wire.Expectation(members=members, **{"min": 1, "max": 3, **fields}))

    async def live(self, seconds: float) -> None:
        """Agents and etcd live on in the same time."""
        until = self.now() + seconds
        while self.now() < until:
            self.job.etcd.advance(0.1)
            self.job.turn(1)
            self.job.come_all()
            await asyncio.sleep(0.1)


def play(story: Coroutine[Any, Any, None]) -> None:
    try:
        run(story)
    finally:
        for town in Town.all:
            town.job.close()
        Town.all.clear()


def test_the_world_is_reported_with_its_members_and_why_it_formed() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0", "w1")
        await town.expect("w0", "w1")
        await town.live(3)
        assert town.world.phase == "running"
        assert [member.name for member in town.world.members] == ["w0", "w1"]
        assert town.world.rescale is not None
        assert town.world.rescale.cause == "start"
        first = town.world.generation
        town.job.end("w1", politely=True)
        await town.live(3)
        assert town.world.generation > first
        assert [member.name for member in town.world.members] == ["w0"]

    play(story())


def test_agents_wait_for_nobody_once_the_controller_says_who_is_expected() -> None:
    async def story() -> None:
        town = Town(last_call_s=1000.0)
        town.job.start("w0")
        await town.expect("w0")
        await town.live(1)
        assert town.world.phase == "running", "no last call: everybody who is expected is here"

    play(story())


def test_a_member_that_must_leave_leaves_the_world_before_its_pod_goes() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0", "w1")
        await town.expect("w0", "w1")
        await town.live(2)
        await town.expect("w0", leaving=(wire.Leaving(member="w1", cause="disruption"),))
        await town.live(3)
        assert [member.name for member in town.world.members] == ["w0"]
        assert town.world.rescale is not None
        assert town.world.rescale.cause == "disruption"

    play(story())


def test_while_a_world_forms_the_report_says_who_is_missing() -> None:
    async def story() -> None:
        town = Town(min=2)
        town.job.start("w0")
        await town.expect("w0", "w1", min=2)
        await town.live(2)
        assert town.world.phase == "forming"
        assert town.world.reason == "the first members have come, waiting for w1"

    play(story())


def test_a_failed_worker_is_a_restart_that_is_reported_until_the_status_has_it() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0", "w1")
        await town.expect("w0", "w1")
        await town.live(2)
        town.job.agents["w0"].fail()
        town.job.agents["w0"].come()
        await town.live(5)
        [restart] = town.world.unacknowledged_restarts
        assert (restart.cause, restart.lost) == ("user", False)
        await town.expect("w0", "w1", restarts={"user": 1}, unsettled=(restart,), settled_to=town.world.generation)
        await town.live(1)
        assert town.world.unacknowledged_restarts == ()

    play(story())


def test_steps_a_hang_and_restarts_that_lead_nowhere_are_reported_as_the_server_would() -> None:
    async def story() -> None:
        town = Town()
        budget = wire.Budget(hang_s=20.0, without_progress=3)
        town.job.start("w0", "w1")
        await town.expect("w0", "w1", budget=budget)
        await town.live(2)
        assert town.world.standing is not None
        assert not town.world.standing.has_stepped
        town.job.agents["w0"].step(7)
        await town.live(1)
        assert town.world.standing.has_stepped
        assert town.world.rescale is not None
        assert set(town.world.rescale.phases) >= {"start", "firstStep"}
        await town.live(25)
        [restart] = town.world.unacknowledged_restarts
        assert (restart.id, restart.cause, restart.pod) == ("1.etcd", "hang", "")
        assert (town.world.rescale.cause, town.world.fruitless, town.world.step) == ("hang", 1, 7)
        town.job.agents["w1"].step(8)
        await town.live(3)
        assert town.world.fruitless == 0

    play(story())


def test_a_new_etcd_learns_from_the_controller_how_often_restarts_led_nowhere() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0", budget=wire.Budget(without_progress=3), fruitless=2, step=40, restarts={"hang": 1, "plan": 5})
        await town.live(2)
        world = town.job.world()
        assert (world.fruitless, world.step, world.restarts) == (2, 40, {"hang": 1})

    play(story())


@pytest.mark.parametrize("is_first", [True, False])
def test_how_a_container_ended_counts_once_whoever_says_so_first(is_first: bool) -> None:
    """The agents see that a member is gone, a disruption for all they know; the controller sees that its memory ran out."""

    async def story() -> None:
        town = Town()
        town.job.start("w0", "w1")
        uid = town.job.agents["w1"].presence._process.partition("/")[0]
        await town.expect("w0", "w1")
        await town.live(2)
        town.job.end("w1")
        ended = wire.Ended(member="w1", pod_uid=uid, cause="outOfMemory")
        if not is_first:
            await town.live(10)
        await town.expect("w0", "w1", ended=(ended,))
        await town.live(10)
        assert [(restart.cause, restart.pod) for restart in town.world.unacknowledged_restarts] == [("outOfMemory", uid)]
        assert town.world.explained == (f"{uid}/0",)

    play(story())


def test_a_container_that_ended_outside_any_world_counts_once_agents_had_time_to_notice() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0", "w1", ended=(wire.Ended(member="w1", pod_uid="uid-1", cause="user"),))
        await town.live(NOTICE_S + 2)
        assert [restart.id for restart in town.world.unacknowledged_restarts] == ["uid-1/0"]

    play(story())


def test_an_agent_that_could_not_start_counts_at_once_and_explains_no_loss() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0", "w1")
        uid = town.job.agents["w1"].presence._process.partition("/")[0]
        await town.live(2)
        town.job.end("w1")
        await town.live(10)
        await town.expect("w0", "w1", ended=(wire.Ended(member="w1", pod_uid=uid, run=1, cause="user", usage_error=True),))
        await town.live(1)
        assert {(one.cause, one.is_alone) for one in town.world.unacknowledged_restarts} == {("disruption", False), ("user", True)}

    play(story())


def test_an_etcd_that_was_never_reached_is_reported_once_and_the_job_counts_pods() -> None:
    async def story() -> None:
        town = Town()
        town.way.is_cut = True
        with pytest.raises(Away):
            await town.expect("w0")
        await town.live(FIRST_PATIENCE_S + 40)
        assert [world.phase for world in town.worlds] == [WorldPhase.UNREACHED]
        town.way.is_cut = False
        await town.live(40)
        assert town.world.phase != WorldPhase.UNREACHED
        assert town.job.etcd.open(EXPECTED) is not None, "what is expected is written as soon as it can be"

    play(story())


def test_an_outage_of_a_minute_changes_nothing_and_a_longer_one_is_reported() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        town.way.is_cut = True
        await town.live(PATIENCE_S - 20)
        assert town.world.phase == "running"
        await town.live(60)
        assert town.world.phase == WorldPhase.UNREACHED
        town.way.is_cut = False
        await town.live(30)
        assert town.world.phase == "running"

    play(story())


def test_a_refusal_is_told_in_etcds_words() -> None:
    async def story() -> None:
        town = Town()
        town.way.is_closed_for_us = True
        with pytest.raises(Away):
            await town.expect("w0")
        await town.live(FIRST_PATIENCE_S + 5)
        assert "permission denied" in town.world.reason

    play(story())


def test_an_etcd_whose_quota_is_used_up_is_reported_until_its_alarm_is_disarmed(caplog: pytest.LogCaptureFixture) -> None:
    """It is read as ever, so each look seemed to be the end of the outage: nothing was reported, and every 15 s logged."""

    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        town.way.has_alarm = True
        await town.live(CHECK_S + 1)
        assert town.world.phase == WorldPhase.UNREACHED
        assert "its quota is used up (alarm NOSPACE); compact, defragment, then disarm the alarm" in town.world.reason
        reports = len(town.worlds)
        await town.live(PATIENCE_S + 40)
        assert len(town.worlds) == reports
        assert len(caplog.records) == 1
        town.way.has_alarm = False
        await town.live(30)
        assert town.world.phase == "running"

    play(story())


def test_without_a_controller_what_it_expected_goes_with_its_lease() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        await town.membership.close()
        await town.live(LEASE_S + 5)
        assert town.job.etcd.open(EXPECTED) is None
        assert town.job.agents["w0"].is_working

    play(story())


def test_a_silent_watch_and_compacted_history_are_noticed() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0", "w1")
        await town.live(2)
        town.way.is_deaf = True
        town.job.start("w1")
        await town.live(20)
        assert {member.name for member in town.world.members} == {"w0", "w1"}
        town.way.is_deaf = False
        town.job.etcd.compacted = town.job.etcd.revision
        await town.live(5)
        town.job.end("w1")
        await town.live(12)
        assert {member.name for member in town.world.members} == {"w0"}

    play(story())


def test_a_watch_that_ends_as_cancelled_is_opened_again() -> None:
    """So gRPC ends it where its connection was closed; the follower ended with it, and the status stood still for ever."""

    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0", "w1")
        await town.live(2)
        town.way.is_cancelled = True
        await town.live(2)
        town.job.start("w1")
        await town.live(5)
        assert {member.name for member in town.world.members} == {"w0", "w1"}

    play(story())


def test_an_older_leader_does_not_overwrite_what_a_newer_one_expects() -> None:
    async def story() -> None:
        town = Town()
        await town.expect("w0", "w1", term=7)
        with pytest.raises(Away):
            await town.expect("w0", term=6)
        assert town.job.etcd.open(EXPECTED).members == ("w0", "w1")

    play(story())


def test_what_is_no_record_is_ignored_and_too_much_of_it_ends_the_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MOST_BYTES", 2**21)

    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        town.job.etcd.write("members/evil", b"\x80\x04pickle")
        town.job.etcd.write("nonsense", b"x")
        await town.live(3)
        assert [member.name for member in town.world.members] == ["w0"]
        for number in range(3):
            town.job.etcd.write(f"members/x{number}", b"x" * 2**20)
        await town.live(PATIENCE_S + 20)
        assert town.world.phase == WorldPhase.UNREACHED
        assert "too much" in town.world.reason

    play(story())


def test_a_flood_of_changes_is_read_no_quicker_than_its_share() -> None:
    """20,000 of them come every few milliseconds; each costs the thread of all etcds some of its time."""
    taken = []

    class Flooding(InMemory):
        async def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
            while True:
                taken.append(prefix)
                await asyncio.sleep(0.001)
                yield (Entry("nonsense", b"", 1),) * 20_000

    async def story() -> None:
        town = Town()
        town.way = Flooding(town.job.etcd)
        town.job.start("w0")
        await town.expect("w0")
        await town.live(20)
        assert [member.name for member in town.world.members] == ["w0"]
        assert 2 < len(taken) < 10

    play(story())


def test_what_one_job_holds_takes_no_room_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_OF_ALL", 2**21)

    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        for number in range(3):
            town.job.etcd.write(f"members/x{number}", b"x" * 2**20)
        await town.live(PATIENCE_S + 20)
        assert "too much" in town.world.reason
        town.worlds.clear()
        for number in range(3):
            town.job.etcd.remove(f"members/x{number}")
        await town.live(20)
        assert [member.name for member in town.world.members] == ["w0"]

    play(story())


def test_records_are_removed_with_the_job_once_its_agents_have_gone() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        with pytest.raises(Away):
            await town.membership.forget(JOB)
        town.job.end("w0", politely=True)
        await town.live(1)
        await town.membership.forget(JOB)
        assert [key for key in town.job.etcd.keys if key.startswith(PREFIX)] == []

    play(story())
