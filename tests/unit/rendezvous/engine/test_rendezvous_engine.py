"""Show by example, in virtual time, which members the next world has and when it is formed."""

from dataclasses import replace

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import Join, LeaveOrder, Ready
from elastic_training.rendezvous.engine.events import Resumed, Said, Tick
from elastic_training.rendezvous.engine.state.timings import Limits
from elastic_training.rendezvous.engine.step import step
from elastic_training.rendezvous.engine.views import summary


def test_a_round_closes_the_moment_everyone_expected_is_there() -> None:
    group = Group()
    group.expect("w0", "w1", "w2")
    group.start("w0")
    group.start("w1")
    assert group.world() == {}
    group.start("w2")
    assert group.world() == {"w0": 0, "w1": 1, "w2": 2}
    assert summary(group.job).phase == "running"


def test_stragglers_are_waited_for_only_so_long_once_enough_are_there() -> None:
    group = Group(limits=Limits(straggler_s=5))
    group.expect("w0", "w1", "w2", min=2)
    group.start("w0")
    group.advance(60)
    assert group.world() == {}
    group.start("w1")
    group.advance(4.9)
    assert group.world() == {}
    assert "waiting for w2" in summary(group.job).reason
    group.advance(0.2)
    assert group.world() == {"w0": 0, "w1": 1}


def test_a_pending_pod_is_not_waited_for() -> None:
    group = Group()
    group.expect("w0", "w1", "w2", pending=("w2",))
    group.start("w0")
    group.start("w1")
    assert group.world() == {"w0": 0, "w1": 1}


def test_survivors_go_on_at_once_when_a_member_leaves() -> None:
    group = group_of(3)
    group.leave("w1")
    assert group.agents["w0"].view.reform == "w1 left: SIGTERM"
    group.come("w0")
    group.come("w2")
    assert group.world() == {"w0": 0, "w2": 1}
    assert summary(group.job).restarts == {"disruption": 1}


def test_survivors_go_on_a_second_after_a_connection_broke() -> None:
    group = group_of(3)
    group.kill("w0")
    group.advance(0.9)
    assert not group.agents["w1"].view.reform
    group.advance(0.2)
    group.come_all()
    assert group.world() == {"w1": 1, "w2": 0}


def test_a_failure_together_with_a_broken_connection_shows_that_the_peer_is_gone() -> None:
    """A pod killed at once: its connection breaks, and the collectives of the others. They waited for the whole second all the same."""
    group = group_of(3)
    group.kill("w0")
    group.advance(0.2)
    group.fail("w1")
    group.advance(0.15)
    assert not group.agents["w2"].view.reform
    group.advance(0.1)
    assert group.agents["w2"].view.reform
    group.come_all()
    assert group.world() == {"w1": 1, "w2": 0}
    assert summary(group.job).restarts == {"disruption": 1, "collateral": 1}
    assert "the connection to w0 broke" in summary(group.job).reason


@pytest.mark.parametrize("breaks_first", [True, False])
def test_a_broken_connection_and_a_failure_may_be_heard_of_in_any_order(*, breaks_first: bool) -> None:
    group = group_of(3)
    signs = [lambda: group.kill("w0"), lambda: group.fail("w1")]
    for sign in signs if breaks_first else reversed(signs):
        assert not group.agents["w2"].view.reform
        sign()
        group.advance(0.5)
    assert group.agents["w2"].view.reform
    group.come_all()
    assert group.world() == {"w1": 1, "w2": 0}


def test_a_members_own_failure_does_not_show_that_it_is_gone() -> None:
    group = group_of(2)
    group.fail("w1")
    group.cut("w1")
    group.advance(0.8)
    group.link("w1")
    group.advance(0.5)
    group.come_all()
    assert (len(group.world()), summary(group.job).restarts) == (2, {"user": 1})


def test_a_connection_that_comes_back_in_time_changes_nothing() -> None:
    group = group_of(2)
    group.cut("w1")
    group.advance(0.9)
    group.link("w1")
    group.advance(10)
    assert len(group.sealed) == 1
    assert not group.agents["w1"].view.reform


def test_a_silent_member_is_lost_within_twenty_seconds() -> None:
    group = group_of(2)
    group.agents["w1"].is_linked = False  # stopped: its connection stays open, nothing comes
    group.advance(10)
    group.advance(8.9)
    assert not group.agents["w0"].view.reform
    group.advance(1.0)
    assert group.agents["w0"].view.reform == "w1 was silent for 19 s"


def test_newcomers_do_not_stop_the_others_before_all_of_them_are_there() -> None:
    group = group_of(1)
    group.expect("w0", "w1", "w2")
    group.start("w1")
    assert not group.agents["w0"].view.reform
    group.start("w2")
    assert group.agents["w0"].view.reform == "w1 joined" or "joined" in group.agents["w0"].view.reform
    group.come("w0")
    assert group.world() == {"w0": 0, "w1": 1, "w2": 2}
    assert len(group.sealed) == 2


def test_newcomers_wait_for_the_others_only_so_long() -> None:
    group = group_of(1)
    group.expect("w0", "w1", "w2")
    group.start("w1")
    group.advance(4.9)
    assert not group.agents["w0"].view.reform
    group.advance(0.2)
    assert group.agents["w0"].view.reform
    group.come("w0")
    assert group.world() == {"w0": 0, "w1": 1}


def test_survivors_keep_their_ranks_and_newcomers_fill_the_holes() -> None:
    group = group_of(4)
    group.expect("w0", "w2", "w3", "w4", max=4, leaving=(LeaveOrder(member="w1", by_s=30),))
    group.start("w4")
    group.come_all()
    assert group.world() == {"w0": 0, "w4": 1, "w2": 2, "w3": 3}


def test_a_survivor_holds_rank_0_rather_than_a_newcomer() -> None:
    group = group_of(3)
    group.expect("w1", "w2", "w3", leaving=(LeaveOrder(member="w0", by_s=30),), max=3)
    group.start("w3")
    group.come_all()
    world = group.world()
    assert world["w3"] != 0
    assert sorted(world) == ["w1", "w2", "w3"]


def test_a_leaving_member_waits_at_the_barrier_until_it_is_taken_away_or_back() -> None:
    group = group_of(2)
    group.expect("w0", "w1", leaving=(LeaveOrder(member="w1", by_s=30),))
    group.come_all()
    assert group.world() == {"w0": 0}
    assert group.agents["w1"].view.leaving == "plan"
    group.expect("w0", "w1")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}


def test_a_leaving_member_stays_while_the_job_would_fall_below_min_and_never_as_rank_0() -> None:
    group = group_of(2, min=2)
    group.expect("w0", "w1", min=2, leaving=(LeaveOrder(member="w0", by_s=60, cause="disruption"),))
    assert not group.agents["w1"].view.reform
    group.fail("w1")
    group.advance(1.1)
    group.come_all()
    assert group.world() == {"w1": 0, "w0": 1}
    group.expect("w1", "w2", min=2, leaving=(LeaveOrder(member="w0", by_s=60, cause="disruption"),))
    group.start("w2")
    group.come_all()
    assert group.world() == {"w1": 0, "w2": 1}


def test_only_allowed_sizes_are_formed() -> None:
    group = Group()
    group.expect("w0", "w1", "w2", "w3", sizes=(1, 2, 4))
    for name in ("w0", "w1", "w2"):
        group.start(name)
    group.advance(6)
    assert group.world() == {"w0": 0, "w1": 1}
    assert group.agents["w2"].is_ready
    group.start("w3")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1, "w2": 2, "w3": 3}


def test_below_min_the_job_waits_and_says_so() -> None:
    group = group_of(2, min=2)
    group.leave("w1")
    group.come_all()
    group.advance(100)
    assert group.world() == {}
    assert summary(group.job).reason == "w1 left: SIGTERM: 1 at the barrier, at least 2 needed, waiting for w1"
    group.start("w1", pod="another")
    assert group.world() == {"w0": 0, "w1": 1}


def test_a_seat_that_does_not_exist_is_nobodys() -> None:
    group = group_of(1)
    held = replace(group.agents["w0"].held, rank=7)
    group.apply(Said("w0", group.agents["w0"].incarnation, Join(incarnation=group.agents["w0"].incarnation, held=held, ready=False)))
    assert group.agents["w0"].view.reform


def test_a_new_incarnation_replaces_the_old_one_for_good() -> None:
    group = group_of(2)
    old = group.agents["w1"]
    group.start("w1", pod="another")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}
    _, effects = step(group.job, Said("w1", old.incarnation, old.join()), group.now)
    assert [type(effect).__name__ for effect in effects] == ["Refuse"]


def test_a_late_barrier_message_of_an_old_world_changes_nothing() -> None:
    group = group_of(2)
    group.leave("w1")
    group.come_all()
    assert group.world() == {"w0": 0}
    group.say("w0", Ready(after=1, store="x"))
    assert group.world() == {"w0": 0}
    assert len(group.sealed) == 2


def test_an_older_leaders_word_is_not_heard() -> None:
    group = group_of(2)
    group.expect("w0", "w1", term=7)
    group.expect("w0", term=6)
    group.come_all()
    assert len(group.world()) == 2


def test_an_unexpected_member_is_not_taken_in() -> None:
    group = group_of(1)
    group.start("stranger")
    group.advance(60)
    assert group.world() == {"w0": 0}
    assert group.agents["stranger"].view.waiting == "not expected by the controller (yet)"


def test_the_last_member_whose_workers_have_not_ended_hears_that_all_others_have() -> None:
    group = group_of(3)
    group.finish("w0")
    assert not any(agent.view.peers_finished for agent in group.agents.values())
    group.finish("w1")
    assert {name for name, agent in group.agents.items() if agent.view.peers_finished} == {"w2"}
    group.finish("w2")
    assert not any(agent.view.peers_finished for agent in group.agents.values())


def test_a_member_that_is_alone_in_its_world_has_no_peers_that_could_have_finished() -> None:
    assert not group_of(1).agents["w0"].view.peers_finished


def test_when_members_finish_nobody_joins_any_more_and_nothing_is_charged() -> None:
    group = group_of(2)
    group.finish("w0")
    group.expect("w0", "w1", "w2")
    group.start("w2")
    group.advance(60)
    assert not group.agents["w1"].view.reform
    group.kill("w0")
    group.advance(60)
    group.finish("w1")
    world = summary(group.job)
    assert (world.phase, world.restarts) == ("finishing", {}), "w2 has yet to go"
    assert group.agents["w1"].view.done
    assert group.agents["w2"].view.finished


def test_a_member_that_does_not_come_to_the_barrier_is_gone_on_without() -> None:
    group = group_of(3, grace_s=5)
    group.leave("w2")
    group.come("w0")
    group.advance(14)
    assert group.world() == {"w1": 1} or group.agents["w1"].view.reform
    group.advance(2)
    assert [name for name in group.world() if name != "w1"] == ["w0"]
    group.come("w1")
    group.advance(6)  # w2 is still expected
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}


def test_members_that_re_form_in_place_move_on_without_their_agent_restarting() -> None:
    group = Group()
    group.expect("w0", "w1")
    group.start("w0")
    group.start("w1")
    group.expect("w0", "w1", "w2")
    group.start("w2", is_ready=False)  # boots while the others work
    group.advance(30)
    assert not group.agents["w0"].view.reform
    before = {name: agent.incarnation for name, agent in group.agents.items()}
    group.come("w2")
    group.come_all()  # at a step boundary, in the same process
    assert group.world() == {"w0": 0, "w1": 1, "w2": 2}
    assert before == {name: agent.incarnation for name, agent in group.agents.items()}
    assert summary(group.job).restarts == {}


def test_after_a_standstill_of_the_server_its_members_have_the_time_that_they_had() -> None:
    group = group_of(3)
    group.now += 60.0
    group.cut("w2")  # it gave the server up meanwhile
    group.apply(Resumed(60.0))
    group.wake_at = group.now
    group.advance(10)
    assert [agent.generation for agent in group.agents.values()] == [1, 1, 1]
    group.link("w2")
    group.advance(30)
    assert [agent.generation for agent in group.agents.values()] == [1, 1, 1]
    assert group.job.accounting.restarts == {}


def test_a_member_that_stays_away_after_a_standstill_of_the_server_is_missed_in_the_end() -> None:
    group = group_of(2)
    group.now += 60.0
    group.cut("w1")
    group.apply(Resumed(60.0))
    group.wake_at = group.now
    group.advance(20)
    group.come_all()
    assert group.world() == {"w0": 0}


def test_a_round_waits_no_shorter_because_the_server_stood_still() -> None:
    group = group_of(2)
    group.expect("w0", "w1", "w2", "w3", min=1, max=4)
    group.start("w2")
    group.now += 60.0
    group.apply(Resumed(60.0))
    group.apply(Tick())
    assert group.agents["w0"].view.reform == "", "w3 has not had its time yet"
    group.advance(6)
    assert group.agents["w0"].view.reform != ""
