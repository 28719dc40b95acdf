"""Charge each restart to its cause, and tell when the budget of a job is spent: by example, in virtual time."""

from dataclasses import replace

import pytest
from rendezvous_group import group_of

from elastic.membership.wire import Budget, Ended, Leave, Ready
from elastic_training.rendezvous.engine.events import Said, Stepped
from elastic_training.rendezvous.engine.views import summary


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
    assert world.closed == "a worker of w1 ended with status 7. Restarts used: 1 of 1."
    assert world.closed in group.agents["w0"].view.waiting
    assert not group.agents["w0"].view.closed, "what members hold is all there is until the controller has it written down"
    group.expect("w0", "w1", budget=Budget(max_restarts=1), closed=world.closed)
    assert group.agents["w0"].view.closed == world.closed


def test_the_reason_of_a_closed_world_quotes_the_first_workers_error() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", 7, rank=1, error="ValueError: \x1b[31m" + "x" * 2000)
    group.advance(0.1)
    group.fail("w0", 1, rank=0, error="RuntimeError: connection closed by peer")
    group.advance(1.1)
    group.come_all()
    closed = summary(group.job).closed
    assert closed.startswith("rank 1: ValueError: \\x1b[31mxxx")
    assert closed.endswith("x. Restarts used: 0 of 0. A worker of w1 ended with status 7.")


def test_a_worker_that_a_signal_ended_names_it() -> None:
    """It was status 139, without a word."""
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", 139, rank=1)
    group.advance(1.1)
    assert "a worker of w1 ended with status 139, SIGSEGV" in group.agents["w0"].view.reform
    group.come_all()
    assert summary(group.job).closed.startswith("a worker of w1 ended with status 139, SIGSEGV (rank 1). Restarts used: 0 of 0.")


def test_a_worker_that_fell_with_its_peer_is_not_blamed_though_it_ended_before() -> None:
    """The first to fail may take seconds to end: its peer sees a closed connection, fails and is reported before."""
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w0", 1, rank=0, error="RuntimeError: Connection closed by peer [10.0.0.2]:4711")
    group.advance(0.5)
    group.fail("w1", 1, rank=3, error="ValueError: bad batch")
    group.come_all()
    assert summary(group.job).closed.startswith("rank 3: ValueError: bad batch. Restarts used: 0 of 0.")
    assert summary(group.job).restarts == {"user": 1, "collateral": 1}


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
    join = replace(agent.join(), trouble="the store of generation 1 was lost")
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
    assert summary(group.job).closed == "the container of w1 ended (user). Restarts used: 1 of 1."


def test_a_container_that_was_killed_is_no_open_question_once_the_controller_has_seen_its_end() -> None:
    """A lost connection is taken for a disruption with a doubt, which stayed in the status for as long as the pod lived."""
    group = group_of(2)
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    assert [entry.unsure for entry in summary(group.job).unacknowledged_restarts] == [True]
    group.start("w1", pod="w1")  # restarted in place
    group.come_all()
    killed = Ended(member="w1", pod_uid="w1", cause="disruption", run=0)
    group.expect("w0", "w1", ended=(killed,))
    (entry,) = [entry for entry in summary(group.job).unacknowledged_restarts if entry.pod == "w1"]
    assert (entry.cause, entry.lost, entry.unsure) == ("disruption", False, False)
    assert summary(group.job).explained == ("w1/0",)
    assert summary(group.job).restarts["disruption"] == 1


@pytest.mark.parametrize("is_formed", [False, True])
def test_a_pod_that_exceeds_its_own_limit_is_charged_though_its_agent_said_goodbye(is_formed: bool) -> None:
    """The kubelet gives such a pod a second between its signals, so its agent says goodbye; nothing was ever charged."""
    group = group_of(3, budget=Budget(max_restarts=0))
    group.leave("w1")
    if is_formed:
        group.come_all()
        assert len(group.world()) == 2
        group.retell()
    end = Ended(member="w1", pod_uid="w1", cause="user", is_last=True, own_limit=True)
    for _ in range(3):
        group.expect("w0", "w1", "w2", budget=Budget(max_restarts=0), ended=(end,))
        group.come_all()
    assert summary(group.job).restarts.get("user") == 1
    assert summary(group.job).closed.startswith("the container of w1 ended (user)")


def test_a_user_error_at_the_end_of_a_goodbye_stays_a_disruption() -> None:
    group = group_of(3, budget=Budget(max_restarts=0))
    group.leave("w1")
    group.come_all()
    end = Ended(member="w1", pod_uid="w1", cause="user", is_last=True)
    group.expect("w0", "w1", "w2", budget=Budget(max_restarts=0), ended=(end,))
    group.come_all()
    assert (summary(group.job).restarts, summary(group.job).closed) == ({"disruption": 1}, "")


def test_a_killed_container_that_was_in_no_world_counts_nothing() -> None:
    group = group_of(1)
    group.expect("w0", "w1", ended=(Ended(member="w1", pod_uid="w1", cause="disruption", is_last=True),))
    group.advance(30)
    assert summary(group.job).restarts == {}


def test_a_restarted_server_learns_from_the_controller_what_was_charged() -> None:
    group = group_of(2, budget=Budget(max_restarts=2), restarts={"user": 2, "disruption": 5})
    group.fail("w1", 1)
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).restarts == {"disruption": 5, "user": 3}
    assert "Restarts used: 2 of 2." in summary(group.job).closed


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
    group.expect("w0", "w1", budget=Budget(max_restarts=3), ended=(replace(end, is_last=False),))
    assert summary(group.job).restarts == {"user": 1}


def test_an_end_that_no_server_has_confirmed_is_the_reason_why_a_restarted_one_misses_a_member() -> None:
    group = group_of(2, budget=Budget(max_restarts=3))
    group.kill("w1")
    group.start_server()
    group.link("w0")
    group.start("w1")  # restarted in place
    end = Ended(member="w1", pod_uid="w1", cause="user", run=0)
    group.expect("w0", "w1", budget=Budget(max_restarts=3), ended=(end,))
    assert summary(group.job).explained == (), "its member may be on the way back"
    group.advance(20)
    assert summary(group.job).explained == ("w1/0",)
    group.come_all()
    assert len(group.world()) == 2
    assert summary(group.job).restarts == {"user": 1}


def test_a_disruption_that_the_controller_confirms_stays_uncharged() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    group.expect("w0", "w1", budget=Budget(max_restarts=0), ended=(Ended(member="w1", pod_uid="w1", cause="disruption"),))
    assert summary(group.job).restarts == {"disruption": 1}
    assert not summary(group.job).closed


def test_a_worker_that_left_on_a_signal_is_a_disruption_for_any_code_of_torchrun() -> None:
    """Torchrun makes an exception of SIGTERM and ends with 1, as it does where a liveness probe fails."""
    group = group_of(2, budget=Budget(max_restarts=0))
    group.leave("w1")
    group.come_all()
    group.start("w1")
    group.come_all()
    group.expect("w0", "w1", budget=Budget(max_restarts=0), ended=(Ended(member="w1", pod_uid="w1", cause="user"),))
    world = summary(group.job)
    assert (world.restarts, world.closed, world.explained) == ({"disruption": 1}, "", ("w1/0",))


def test_a_worker_that_failed_and_whose_pod_ended_because_of_that_is_charged_once() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
    group.fail("w1", 1)
    group.say("w1", Leave(reason="torchrun ended"))
    group.advance(1.1)
    group.come_all()
    end = Ended(member="w1", pod_uid="w1", cause="user", is_last=True)
    group.expect("w0", "w1", budget=Budget(max_restarts=1), ended=(end,))
    assert (summary(group.job).restarts, summary(group.job).closed) == ({"user": 1}, "")


def test_facts_that_only_the_server_knew_are_in_its_members_when_it_dies() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
    group.fail("w1", 1)
    group.advance(1.1)
    group.come_all()
    assert len(group.world()) == 2
    group.start_server()
    group.retell()
    group.link("w0")
    assert summary(group.job).restarts == {"user": 1}
    assert [entry.cause for entry in summary(group.job).unacknowledged_restarts] == ["user"]
    group.link("w1")
    group.fail("w1", 1)
    group.advance(1.1)
    group.come_all()
    assert "Restarts used: 1 of 1." in summary(group.job).closed


def test_a_hang_is_in_the_members_too_while_they_still_stop() -> None:
    group = group_of(2, budget=Budget(max_restarts=0, hang_s=60))
    group.started("w0", "w1")
    group.apply(Stepped(group.job.membership.generation, 1))
    group.advance(66)
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.retell()
    assert summary(group.job).restarts == {"hang": 1}
    assert "Restarts used: 0 of 0." in summary(group.job).closed


def test_a_budget_that_was_used_up_stays_so_when_the_server_dies_before_anybody_heard_of_it() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", 7)
    group.advance(1.1)
    group.come_all()
    closed = summary(group.job).closed
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.retell()
    assert closed == "a worker of w1 ended with status 7. Restarts used: 0 of 0."
    assert summary(group.job).closed == "a restart that an earlier server saw. Restarts used: 0 of 0."
    group.start_server()
    group.expect("w0", "w1", budget=Budget(max_restarts=0), closed=closed)
    group.link("w0")
    assert group.agents["w0"].view.closed == closed


def test_a_word_that_arrives_late_is_not_heard_and_another_process_of_the_same_term_is() -> None:
    group = group_of(2)
    for speaker, number, members in (("a", 2, 1), ("a", 1, 2), ("b", 1, 2)):
        group.expect(*[f"w{index}" for index in range(members)], speaker=speaker, number=number)
        assert len(group.job.membership.expected) == (1 if speaker == "a" else 2)


def test_a_member_that_an_earlier_server_called_is_not_charged_for_coming_to_the_next() -> None:
    """Found by the simulation: it was still stopping its workers when the server died, and the new one had called nobody."""
    group = group_of(2, budget=Budget(max_restarts=0))
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.retell()
    group.come("w1")
    group.advance(1.1)
    group.come_all()
    assert len(group.world()) == 2
    assert (summary(group.job).restarts, summary(group.job).closed) == ({}, "")
