"""What the membership machine decides, by example, in virtual time."""

from msgspec import structs
from rendezvous_group import Group, group_of

from rendezvous.machine import Limits, Said, Stepped, Tick, step, summary
from rendezvous.wire import Ended, Join, Leaving, Notice, Ready


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
    group.expect("w0", "w2", "w3", "w4", max=4, leaving=(Leaving(member="w1", by_s=30),))
    group.start("w4")
    group.come_all()
    assert group.world() == {"w0": 0, "w4": 1, "w2": 2, "w3": 3}


def test_a_survivor_holds_rank_0_rather_than_a_newcomer() -> None:
    group = group_of(3)
    group.expect("w1", "w2", "w3", leaving=(Leaving(member="w0", by_s=30),), max=3)
    group.start("w3")
    group.come_all()
    world = group.world()
    assert world["w3"] != 0
    assert sorted(world) == ["w1", "w2", "w3"]


def test_a_leaving_member_waits_at_the_barrier_until_it_is_taken_away_or_back() -> None:
    group = group_of(2)
    group.expect("w0", "w1", leaving=(Leaving(member="w1", by_s=30),))
    group.come_all()
    assert group.world() == {"w0": 0}
    assert group.agents["w1"].view.leaving == "plan"
    group.expect("w0", "w1")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}


def test_a_leaving_member_stays_while_the_job_would_fall_below_min_and_never_as_rank_0() -> None:
    group = group_of(2, min=2)
    group.expect("w0", "w1", min=2, leaving=(Leaving(member="w0", by_s=60, cause="disruption"),))
    assert not group.agents["w1"].view.reform
    group.fail("w1")
    group.advance(1.1)
    group.come_all()
    assert group.world() == {"w1": 0, "w0": 1}
    group.expect("w1", "w2", min=2, leaving=(Leaving(member="w0", by_s=60, cause="disruption"),))
    group.start("w2")
    group.come_all()
    assert group.world() == {"w1": 0, "w2": 1}


def test_a_notice_from_the_member_itself_counts_as_leaving() -> None:
    group = group_of(2)
    group.say("w1", Notice(by_s=120, cause="disruption"))
    group.come_all()
    assert group.world() == {"w0": 0}
    group.leave("w1")
    assert "user" not in summary(group.job).restarts


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


def test_the_first_failure_is_the_cause_and_its_peers_are_collateral() -> None:
    group = group_of(3, max_restarts=1)
    group.fail("w1", 1)
    group.fail("w0", 1)
    group.advance(1.1)
    group.come_all()
    group.come_all()
    assert len(group.world()) == 3
    assert summary(group.job).restarts == {"user": 1, "collateral": 1}
    assert "worker of w1" in summary(group.job).reason


def test_failures_around_a_lost_member_are_nobodys_fault() -> None:
    group = group_of(3, max_restarts=0)
    group.fail("w1", 1)
    group.kill("w0")
    group.fail("w2", 1)
    group.come_all()
    assert group.world() == {}
    group.advance(1.5)
    assert group.world() == {"w2": 0, "w1": 1}
    assert summary(group.job).restarts == {"disruption": 1, "collateral": 2}
    assert "connection to w0 broke" in summary(group.job).reason


def test_a_failure_after_a_peer_has_finished_is_not_charged() -> None:
    """Seen in a demo: rank 0 was done and closed its connection while rank 1 was still in the last barrier."""
    group = group_of(2, max_restarts=0)
    group.finish("w0")
    group.fail("w1", 1)
    group.come_all()
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}
    group.fail("w1", 1)
    group.come_all()
    assert summary(group.job).closed.startswith("a worker of w1 ended with status 1"), "but it cannot go on for ever"


def test_a_failure_whose_peer_finished_a_moment_later_is_not_charged_either() -> None:
    group = group_of(2, max_restarts=0)
    group.fail("w1", 1)
    group.finish("w0")
    group.come_all()
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}


def test_peers_of_a_failure_get_a_moment_to_end_by_themselves() -> None:
    """They may have been finishing: a worker whose peer was done and gone fails at its last barrier, before the other's end is known."""
    group = group_of(2, max_restarts=0)
    group.fail("w1", 1)
    group.come("w1")
    group.advance(0.8)
    assert not group.agents["w0"].view.reform
    group.finish("w0")
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}


def test_when_all_peers_of_a_failure_have_come_nothing_is_waited_for() -> None:
    group = group_of(2, max_restarts=1)
    for name in ("w1", "w0"):
        group.fail(name, 1)
        group.come(name)
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"collateral": 1, "user": 1}


def test_a_spent_budget_closes_the_world_with_its_reason() -> None:
    group = group_of(2, max_restarts=1)
    group.fail("w1", 7)
    group.advance(1.1)
    group.come_all()
    assert len(group.world()) == 2
    group.fail("w1", 7)
    group.advance(1.1)
    group.come_all()
    world = summary(group.job)
    assert world.phase == "closed"
    assert world.closed == "a worker of w1 ended with status 7, and all 1 restarts that maxRestarts allows are used up"
    assert group.agents["w0"].view.closed == world.closed


def test_an_agent_that_went_with_its_failed_worker_is_still_the_cause() -> None:
    group = group_of(2, max_restarts=0)
    group.fail("w1", 1)
    group.leave("w1")
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).closed.startswith("a worker of w1 ended with status 1")


def test_a_member_that_stops_without_a_report_is_charged_as_the_user() -> None:
    group = group_of(2, max_restarts=3)
    group.come("w1")
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).restarts == {"user": 1}


def test_why_a_member_came_to_the_barrier_outlives_a_broken_connection() -> None:
    group = group_of(2, max_restarts=0)
    agent = group.agents["w1"]
    group.cut("w1")
    agent.is_ready = agent.is_linked = True
    join = structs.replace(agent.join(), trouble="the store of generation 1 was lost")
    group.apply(Said("w1", agent.incarnation, join))
    group.come_all()
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"disruption": 1}


def test_a_seat_that_does_not_exist_is_nobodys() -> None:
    group = group_of(1)
    held = structs.replace(group.agents["w0"].held, rank=7)
    group.apply(Said("w0", group.agents["w0"].incarnation, Join(incarnation=group.agents["w0"].incarnation, held=held, ready=False)))
    assert group.agents["w0"].view.reform


def test_an_unreachable_store_is_a_disruption() -> None:
    group = group_of(2, max_restarts=0)
    agent = group.agents["w1"]
    agent.is_ready = True
    group.say("w1", Ready(after=1, store="w1:9", trouble="the store of generation 1 was lost"))
    group.come_all()
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"disruption": 1}


def test_the_controllers_word_on_an_end_removes_a_broken_member_at_once() -> None:
    group = group_of(2, max_restarts=5)
    group.kill("w1")
    group.expect("w0", "w1", max_restarts=5, ended=(Ended(member="w1", pod_uid="w1", cause="out of memory"),))
    group.come_all()
    assert group.world() == {"w0": 0}
    assert summary(group.job).restarts == {"out of memory": 1}


def test_a_container_that_ended_by_itself_is_charged_once_when_the_controller_says_so() -> None:
    group = group_of(2, max_restarts=1)
    for run in (0, 1):
        group.kill("w1")
        group.advance(1.1)
        group.come_all()
        assert group.world() == {"w0": 0}
        group.start("w1")  # restarted in place: the same pod
        group.come_all()
        assert len(group.world()) == 2
        end = Ended(member="w1", pod_uid="w1", cause="user", run=run)
        for _ in range(3):
            group.expect("w0", "w1", max_restarts=1, ended=(end,))
        if run == 0:
            assert summary(group.job).restarts == {"user": 1}
            assert len(group.world()) == 2, "the living run of the same pod is left alone"
    assert summary(group.job).closed == "the container of w1 ended (user), and all 1 restarts that maxRestarts allows are used up"


def test_a_restarted_server_learns_from_the_controller_what_was_charged() -> None:
    group = group_of(2, max_restarts=2, restarts={"user": 2, "disruption": 5})
    group.fail("w1", 1)
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).restarts == {"disruption": 5, "user": 3}
    assert "all 2 restarts that maxRestarts allows are used up" in summary(group.job).closed


def test_a_disruption_that_the_controller_confirms_stays_uncharged() -> None:
    group = group_of(2, max_restarts=0)
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    group.expect("w0", "w1", max_restarts=0, ended=(Ended(member="w1", pod_uid="w1", cause="disruption"),))
    assert summary(group.job).restarts == {"disruption": 1}
    assert not summary(group.job).closed


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
    assert (world.phase, world.restarts) == ("finished", {})
    assert group.agents["w1"].view.done


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
    group.start("w2", is_ready=False)  # boots beside the others' work
    group.advance(30)
    assert not group.agents["w0"].view.reform
    before = {name: agent.incarnation for name, agent in group.agents.items()}
    group.come("w2")
    group.come_all()  # at a step boundary, in the same process
    assert group.world() == {"w0": 0, "w1": 1, "w2": 2}
    assert before == {name: agent.incarnation for name, agent in group.agents.items()}
    assert summary(group.job).restarts == {}


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
    assert group.job.generation == 2


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


def test_a_silent_member_that_runs_again_is_made_to_present_itself_anew() -> None:
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
    assert job.members == group.job.members


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
    assert rescale.id == group.job.standing.id  # type: ignore[union-attr]


def test_the_time_until_a_lost_connection_was_certain_is_told_apart() -> None:
    group = group_of(2)
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    rescale = summary(group.job).rescale
    assert rescale is not None
    assert rescale.phases["detect"] == 1000
