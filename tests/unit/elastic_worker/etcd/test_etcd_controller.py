"""Agents that meet in etcd where a controller says who is expected there. In memory and virtual time."""

from collections.abc import Iterator

import pytest
from etcd_agents import Job

from elastic_worker.etcd.records import EXPECTED, Leaving


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_with_a_controller_nobody_waits_for_a_last_call() -> None:
    job = Job(last_call_s=1000)
    job.expect("w0", "w1")
    job.start("w0", "w1")
    job.turn(6)
    assert set(job.names()) == {"w0", "w1"}
    job.close()


def test_expected_members_that_are_not_here_are_waited_for_a_while(job: Job) -> None:
    job.expect("w0", "w1", "w2", pending=("w2",))
    job.start("w0")
    job.turn()
    assert job.agents["w0"].view.waiting == "waiting for w1"
    job.live(6)
    assert job.names() == ("w0",)


def test_without_a_word_of_the_controller_no_world_is_formed_if_there_is_a_controller() -> None:
    job = Job(needs_controller=True)
    job.start("w0", "w1", "w2")
    job.live(10)
    assert job.world() is None
    job.expect("w0", "w1", floor=7)
    job.live(1)
    assert job.world().generation == 8
    assert set(job.names()) == {"w0", "w1"}
    assert "w2 is leaving (plan)" in job.agents["w2"].view.waiting
    job.close()


def test_a_world_that_was_formed_before_the_controller_spoke_is_numbered_above_those_that_it_knows(job: Job) -> None:
    """A job was suspended and its records removed; when it was resumed, the etcd was away.

    Agents reached it again before the controller did, which had seen world 10: their world 1 was an old one to it for ever, without
    members, and failures in it were not counted.
    """
    job.start("w0", "w1")
    job.live(3)
    assert job.world().generation == 1
    job.expect("w0", "w1", floor=10)
    job.live(3)
    assert (job.world().generation, set(job.names()), job.world().restarts) == (11, {"w0", "w1"}, {})
    assert job.world().reason.startswith("the controller knows of a later world than generation 1")
    job.expect("w0", "w1", floor=11)
    job.live(10)
    assert job.world().generation == 11, "training is disturbed once"


def test_a_world_with_a_low_number_trains_on_if_its_members_could_form_no_other(job: Job) -> None:
    job.start("w0", "w1")
    job.live(3)
    job.expect("w0", "w1", "w2", floor=10, min=3, max=3)
    job.live(10)
    assert (job.world().generation, job.world().round) == (1, None)


def test_a_member_that_must_leave_is_let_go_and_never_rank_0(job: Job) -> None:
    job.expect("w0", "w1", "w2")
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.expect("w0", "w1", "w2", leaving=(Leaving("w0", "disruption"),))
    job.live(3)
    assert set(job.names()) == {"w1", "w2"}
    assert job.world().reason.startswith("w0 is leaving (disruption)")
    assert job.world().restarts == {}


def test_the_planned_end_of_a_member_stays_planned_if_a_new_pod_has_its_name(job: Job) -> None:
    """The job shrank, and grew again before the next world was formed. A disruption was counted."""
    job.expect("w0", "w1", "w2")
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.expect("w0")
    job.turn()
    assert job.world().round is not None
    job.end("w1")
    job.end("w2")
    for _ in range(10):  # their leases end, and w0 is still at work
        job.etcd.advance(1.0)
        job.turn(1)
    assert job.member("w1") is None
    job.expect("w0", "w1")
    job.start("w1")
    job.live(3)
    assert (set(job.names()), job.world().restarts) == ({"w0", "w1"}, {"plan": 2})


def test_a_controller_closes_the_job_for_everybody(job: Job) -> None:
    job.expect("w0")
    job.start("w0")
    job.live(2)
    job.expect("w0", closed="the deadline is over")
    job.turn()
    assert job.agents["w0"].view.closed == "the deadline is over"


def test_a_controller_that_goes_leaves_the_job_to_its_agents(job: Job) -> None:
    job.expect("w0", "w1")
    job.start("w0", "w1")
    job.turn(6)
    job.etcd.remove(EXPECTED)
    job.end("w1", politely=True)
    job.live(3)
    assert job.names() == ("w0",)
