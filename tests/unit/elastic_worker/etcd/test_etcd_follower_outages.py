"""The controller's side of a rendezvous in an etcd that is away, full, silent or refuses it, and of one without a controller."""

import pytest
from etcd_town import Town, play

from elastic.etcd.follower import CHECK_S, FIRST_PATIENCE_S, LEASE_S, PATIENCE_S
from elastic.etcd.store import Away
from elastic.membership.phases import WorldPhase
from elastic_worker.etcd.records import EXPECTED


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
