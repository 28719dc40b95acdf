"""Check an engine that has just started, that sleeps, or whose clock jumps, and the times of a rescale: by example, in virtual time."""

from dataclasses import replace

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import Ended, LeaveOrder
from elastic_training.rendezvous.engine.events import Said, Stepped, Tick
from elastic_training.rendezvous.engine.step import step
from elastic_training.rendezvous.engine.views import summary


def test_a_restarted_server_finds_the_world_as_its_members_present_it() -> None:
    group = group_of(3)
    group.start_server()
    for name in ("w2", "w0", "w1"):
        group.advance(0.3)
        group.link(name)
    group.retell()
    group.advance(60)
    assert group.world() == {"w0": 0, "w1": 1, "w2": 2}
    assert len(group.sealed) == 1
    group.leave("w1")
    group.come_all()
    assert group.job.membership.generation == 2


def test_a_restarted_server_waits_for_members_before_it_calls_them_lost() -> None:
    group = group_of(3)
    group.start_server()
    group.retell()
    group.link("w0")
    group.link("w1")
    group.advance(14)
    assert not group.agents["w0"].view.reform
    group.advance(2)
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}


@pytest.mark.parametrize("cause", ["outOfMemory", "user"])
def test_an_end_that_an_earlier_server_had_explained_is_not_counted_again(cause: str) -> None:
    """The server restarted before the controller had written the restart down, and the report of the end came once more."""
    ended = (Ended(member="w2", pod_uid="w2", run=0, cause=cause, is_last=True),)
    group = group_of(3)
    group.started("w0", "w1", "w2")
    group.kill("w2")
    group.expect("w0", "w1", "w2", ended=ended)
    group.advance(2)
    group.come_all()
    assert summary(group.job).restarts == {cause: 1}
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.retell()
    group.advance(30)
    told = summary(group.job)
    assert (told.restarts, told.explained) == ({cause: 1}, ("w2/0",))
    group.kill("w1")
    ended = (*ended, Ended(member="w1", pod_uid="w1", run=0, cause=cause, is_last=True))
    group.expect("w0", "w1", ended=ended)
    group.advance(2)
    group.come_all()
    assert summary(group.job).restarts == {cause: 2}, "another end counts"


def test_a_leave_is_acted_on_at_once_even_by_a_young_server() -> None:
    group = group_of(3)
    group.start_server()
    group.retell()
    for name in ("w0", "w1", "w2"):
        group.link(name)
    group.leave("w2")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}


def test_a_young_server_need_not_wait_for_a_job_that_is_as_young() -> None:
    group = Group(up_for_s=0)
    group.expect("w0", "w1", "w2")
    group.start("w0")
    group.start("w1")
    group.advance(5.1)
    assert group.world() == {"w0": 0, "w1": 1}
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    assert group.world() == {"w0": 0}


def test_the_floor_keeps_generations_from_falling_when_everybody_is_new() -> None:
    group = Group(up_for_s=0)
    group.expect("w0", floor=41)
    group.start("w0")
    assert group.agents["w0"].generation == 42


def test_without_the_controllers_word_no_world_is_numbered() -> None:
    """Found by the laws: a new server that knows no floor numbered a second world 1 when everybody was new."""
    group = Group(up_for_s=0)
    group.start("w0")
    group.advance(120)
    assert group.world() == {}
    assert "the controller" in group.agents["w0"].view.waiting
    group.expect("w0", floor=3)
    assert group.agents["w0"].generation == 4


def test_a_silent_member_that_runs_again_is_made_to_present_itself_again() -> None:
    group = group_of(2)
    old = group.agents["w1"]
    old.is_linked = False
    group.advance(20)
    group.come_all()
    assert group.world() == {"w0": 0}
    assert ("w1", old.incarnation) in group.cuts
    group.link("w1")
    group.come_all()
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}


def test_a_clock_that_jumps_back_neither_loses_nor_forms_anything() -> None:
    group = group_of(2)
    job, _ = step(group.job, Tick(), group.now - 500)
    assert job.now == group.job.now
    assert job.membership.members == group.job.membership.members


def test_phases_of_a_rescale_add_up() -> None:
    group = group_of(2)
    group.leave("w1")
    group.advance(0.5)
    group.come_all()
    group.advance(0.7)
    group.started("w0")
    rescale = summary(group.job).rescale
    assert rescale is not None
    assert rescale.phases == {"detect": 0, "notice": 0, "drain": 500, "round": 0, "start": 700}
    assert rescale.cause == "disruption"
    group.now += 0.2
    group.apply(Stepped(generation=2))
    group.now += 9
    group.apply(Stepped(generation=2))
    rescale = summary(group.job).rescale
    assert rescale is not None
    assert rescale.phases["firstStep"] == 200
    assert rescale.id == group.job.membership.world.id  # type: ignore[union-attr]


def test_the_time_until_a_lost_connection_was_certain_is_told_apart() -> None:
    group = group_of(2)
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    rescale = summary(group.job).rescale
    assert rescale is not None
    assert rescale.phases["detect"] == 1000


def test_the_first_worker_that_failed_while_the_server_was_away_is_named_and_charged() -> None:
    """The peer whose worker was brought down came back first, and was named as the one that failed."""
    group = group_of(3)
    group.start_server()
    group.retell()
    for name, ago_s in (("w2", 0.5), ("w0", 2.0), ("w1", 0.7)):
        agent = group.agents[name]
        agent.is_ready = agent.is_linked = True
        join = replace(agent.join(), failed=True, status=1, failed_ago_s=ago_s)
        group.apply(Said(name, agent.incarnation, join))
    group.advance(20)
    assert group.job.membership.world is not None
    assert group.job.membership.world.reason == "a worker of w0 ended with status 1; 3 members"
    assert {entry.pod: entry.cause for entry in group.job.accounting.known_restarts.values()} == {
        "w0": "user",
        "w1": "collateral",
        "w2": "collateral",
    }


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_new_server_neither_waits_for_the_worker_of_a_lost_node_nor_charges_its_peers(*, fails_first: bool) -> None:
    """The node of the server went, with a worker. The survivors' collectives broke, and the first of them was charged after 15 s."""
    group = group_of(3)
    group.start_server()
    leaving = (LeaveOrder(member="w0", cause="disruption", pod_uid="w0"),)
    group.expect("w1", "w2", "w3", pending=("w3",), leaving=leaving)
    for name in ("w1", "w2"):
        group.link(name)
        if fails_first:
            group.fail(name)
        group.come(name)
    group.advance(2)
    assert group.world().keys() == {"w1", "w2"}
    assert group.job.accounting.restarts == {"disruption": 1, "collateral": 2} if fails_first else {"disruption": 1}
    group.expect("w1", "w2", "w3", ended=(Ended(member="w0", pod_uid="w0", run=0, cause="disruption", is_last=True),))
    group.advance(30)
    assert group.job.accounting.restarts["disruption"] == 1, "the end of the pod is no second loss"


def test_a_new_server_does_not_wait_for_the_newcomer_in_place_of_a_lost_worker() -> None:
    """Seen on real nodes: the pod made in place of the lost one ran, its agent still imported torch, and the survivors waited 15 s."""
    group = group_of(3)
    group.start_server()
    leaving = (LeaveOrder(member="w0", cause="disruption", pod_uid="w0"),)
    group.expect("w1", "w2", "w3", newcomers=("w3",), leaving=leaving)
    for name in ("w1", "w2"):
        group.link(name)
        group.fail(name)
        group.come(name)
    group.advance(2)
    assert group.world().keys() == {"w1", "w2"}
    assert group.job.accounting.restarts == {"disruption": 1, "collateral": 2}


@pytest.mark.parametrize(("floor", "newcomers"), [(1, ("w0", "w1")), (0, ("w1",))], ids=["seen world", "unseen world"])
def test_a_new_server_waits_for_workers_that_are_in_a_world_and_not_ready_yet(*, floor: int, newcomers: tuple[str, ...]) -> None:
    """w9 had left two worlds ago, its pod was stuck in deletion, and the world was too young for its workers to be Ready.

    The new server heard of w0 first, took w9 for the other one of its world, counted its end and stopped the training.
    """
    group = group_of(2)
    group.start_server()
    group.heard = 0
    leaving = (LeaveOrder(member="w9", cause="disruption", pod_uid="w9"),)
    group.expect("w0", "w1", newcomers=newcomers, leaving=leaving, floor=floor)
    group.link("w0")
    group.advance(1)
    assert not group.agents["w0"].view.reform
    group.link("w1")
    group.advance(20)
    assert group.job.membership.generation == 1
    assert group.job.accounting.restarts == {}


def test_a_new_server_waits_for_members_that_may_come_though_one_has_left() -> None:
    group = group_of(3)
    group.start_server()
    group.expect("w1", "w2", leaving=(LeaveOrder(member="w0", cause="disruption", pod_uid="w0"),))
    group.link("w1")
    group.advance(5)
    assert not group.agents["w1"].view.reform
    group.link("w2")
    group.advance(1)
    assert group.agents["w1"].view.reform == "w0 had to leave and is gone"


def test_failures_after_the_loss_of_a_member_while_no_server_ran_are_not_charged() -> None:
    group = group_of(3)
    group.start_server()
    group.retell()
    for name in ("w1", "w2"):
        group.link(name)
        group.fail(name)
        group.come(name)
    group.advance(16)
    assert group.world().keys() == {"w1", "w2"}
    assert group.job.accounting.restarts == {"collateral": 2}
