"""The controller's side of a rendezvous in an etcd: what it reports of restarts, once each, and under whose account."""

import pytest
from etcd_town import Town, play

from elastic.etcd.follower import NOTICE_S
from elastic.membership import wire


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


def test_the_highest_step_is_reported_once_a_world_no_longer_works_and_not_at_each_step() -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0", "w1")
        await town.expect("w0", "w1")
        await town.live(2)
        for step in range(1, 31):
            town.job.agents["w0"].step(step)
            await town.live(1)
        assert {world.highest for world in town.worlds if world.phase == "running"} == {None}
        for agent in town.job.agents.values():
            agent.presence.report_state("finished", generation=agent.generation)
        await town.live(2)
        assert town.world.phase == "finished"
        assert town.world.highest is not None
        assert town.world.highest >= 25, "it is written down every 5 s"

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
def test_the_end_of_a_container_counts_once_for_any_first_reporter(is_first: bool) -> None:
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
