"""Whose restart it was, and when the job's budget is spent: by example, in virtual time."""

from msgspec import structs
from rendezvous_group import group_of

from rendezvous.machine import Said, summary
from rendezvous.wire import Budget, Ended, Ready


def test_the_first_failure_is_the_cause_and_its_peers_are_collateral() -> None:
    group = group_of(3, budget=Budget(max_restarts=1))
    group.fail("w1", 1)
    group.fail("w0", 1)
    group.advance(1.1)
    group.come_all()
    group.come_all()
    assert len(group.world()) == 3
    assert summary(group.job).restarts == {"user": 1, "collateral": 1}
    assert "worker of w1" in summary(group.job).reason


def test_failures_around_a_lost_member_are_nobodys_fault() -> None:
    group = group_of(3, budget=Budget(max_restarts=0))
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
    group = group_of(2, budget=Budget(max_restarts=0))
    group.finish("w0")
    group.fail("w1", 1)
    group.come_all()
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}
    group.fail("w1", 1)
    group.come_all()
    assert summary(group.job).closed.startswith("a worker of w1 ended with status 1"), "but it cannot go on for ever"


def test_a_failure_whose_peer_finished_a_moment_later_is_not_charged_either() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", 1)
    group.finish("w0")
    group.come_all()
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}


def test_peers_of_a_failure_get_a_moment_to_end_by_themselves() -> None:
    """They may have been finishing: a worker whose peer was done and gone fails at its last barrier, before the other's end is known."""
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", 1)
    group.come("w1")
    group.advance(0.8)
    assert not group.agents["w0"].view.reform
    group.finish("w0")
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}


def test_when_all_peers_of_a_failure_have_come_nothing_is_waited_for() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
    for name in ("w1", "w0"):
        group.fail(name, 1)
        group.come(name)
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"collateral": 1, "user": 1}


def test_a_spent_budget_closes_the_world_with_its_reason() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
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
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", 1)
    group.leave("w1")
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).closed.startswith("a worker of w1 ended with status 1")


def test_a_member_that_stops_without_a_report_is_charged_as_the_user() -> None:
    group = group_of(2, budget=Budget(max_restarts=3))
    group.come("w1")
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).restarts == {"user": 1}


def test_why_a_member_came_to_the_barrier_outlives_a_broken_connection() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    agent = group.agents["w1"]
    group.cut("w1")
    agent.is_ready = agent.is_linked = True
    join = structs.replace(agent.join(), trouble="the store of generation 1 was lost")
    group.apply(Said("w1", agent.incarnation, join))
    group.come_all()
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"disruption": 1}


def test_an_unreachable_store_is_a_disruption() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    agent = group.agents["w1"]
    agent.is_ready = True
    group.say("w1", Ready(after=1, store="w1:9", trouble="the store of generation 1 was lost"))
    group.come_all()
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"disruption": 1}


def test_the_controllers_word_on_an_end_removes_a_broken_member_at_once() -> None:
    group = group_of(2, budget=Budget(max_restarts=5))
    group.kill("w1")
    group.expect("w0", "w1", budget=Budget(max_restarts=5), ended=(Ended(member="w1", pod_uid="w1", cause="outOfMemory"),))
    group.come_all()
    assert group.world() == {"w0": 0}
    assert summary(group.job).restarts == {"outOfMemory": 1}


def test_a_container_that_ended_by_itself_is_charged_once_when_the_controller_says_so() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
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
            group.expect("w0", "w1", budget=Budget(max_restarts=1), ended=(end,))
        if run == 0:
            assert summary(group.job).restarts == {"user": 1}
            assert len(group.world()) == 2, "the living run of the same pod is left alone"
    assert summary(group.job).closed == "the container of w1 ended (user), and all 1 restarts that maxRestarts allows are used up"


def test_a_restarted_server_learns_from_the_controller_what_was_charged() -> None:
    group = group_of(2, budget=Budget(max_restarts=2), restarts={"user": 2, "disruption": 5})
    group.fail("w1", 1)
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).restarts == {"disruption": 5, "user": 3}
    assert "all 2 restarts that maxRestarts allows are used up" in summary(group.job).closed


def test_an_end_that_is_told_while_a_later_run_works_is_not_held_against_that() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    old = Ended(member="w1", pod_uid="w1", cause="user", run=0)
    for _ in range(2):
        group.expect("w0", "w1", budget=Budget(max_restarts=0), ended=(old,))
        if "w1" in group.agents:
            group.leave("w1")
        group.come_all()
    assert (summary(group.job).restarts, summary(group.job).closed) == ({"disruption": 1}, "")


def test_a_last_end_that_is_told_before_its_connection_broke_is_charged_when_it_has() -> None:
    group = group_of(2, budget=Budget(max_restarts=3))
    end = Ended(member="w1", pod_uid="w1", cause="user", is_last=True)
    group.expect("w0", "w1", budget=Budget(max_restarts=3), ended=(end,))
    assert summary(group.job).restarts == {}
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    group.expect("w0", "w1", budget=Budget(max_restarts=3), ended=(structs.replace(end, is_last=False),))
    assert summary(group.job).restarts == {"user": 1}


def test_ends_from_before_a_servers_time_are_not_held_against_a_later_run_of_their_pods() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.kill("w1")
    old = Ended(member="w1", pod_uid="w1", cause="user", run=0)
    group.expect("w0", "w1", budget=Budget(max_restarts=0), ended=(old,))
    group.advance(20)
    group.come_all()
    assert (summary(group.job).restarts, summary(group.job).closed) == ({"disruption": 1}, "")
    group.expect("w0", "w1", budget=Budget(max_restarts=0), ended=(structs.replace(old, run=1),))
    assert summary(group.job).restarts == {"user": 1}


def test_a_disruption_that_the_controller_confirms_stays_uncharged() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    group.expect("w0", "w1", budget=Budget(max_restarts=0), ended=(Ended(member="w1", pod_uid="w1", cause="disruption"),))
    assert summary(group.job).restarts == {"disruption": 1}
    assert not summary(group.job).closed
