"""The controller's side of a rendezvous in an etcd: what it reports of the world, and what it writes."""

import pytest
from etcd_store import JOB, PREFIX
from etcd_town import Town, play

from elastic.etcd.store import Away
from elastic.membership import wire
from elastic_worker.etcd.records import EXPECTED


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
        await town.expect("w0", leaving=(wire.LeaveOrder(member="w1", cause="disruption"),))
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


def test_an_older_leader_does_not_overwrite_what_a_newer_one_expects() -> None:
    async def story() -> None:
        town = Town()
        await town.expect("w0", "w1", term=7)
        with pytest.raises(Away):
            await town.expect("w0", term=6)
        assert town.job.etcd.open(EXPECTED).members == ("w0", "w1")

    play(story())


@pytest.mark.parametrize("last", [None, 7])
def test_records_are_removed_with_the_job_once_its_agents_have_gone_and_its_last_step_is_told(last: int | None) -> None:
    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        if last is not None:
            town.job.agents["w0"].step(last)
            await town.live(1)
        with pytest.raises(Away):
            await town.membership.forget(JOB)
        town.job.end("w0", politely=True)
        await town.live(1)
        assert await town.membership.forget(JOB) == last
        assert [key for key in town.job.etcd.keys if key.startswith(PREFIX)] == []

    play(story())
