"""The end of a job's work: who is let go, who works on, who begins again, and when nobody is waited for any more."""

from dataclasses import replace

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import Budget, Leave
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.state.timings import Limits
from elastic_training.rendezvous.engine.views import summary


def phase(group: Group) -> str:
    return summary(group.job).phase


def is_let_go(group: Group, name: str) -> bool:
    return bool(group.agents[name].view.finished)


def say_finished(group: Group, *names: str) -> None:
    """Let the controller see that these pods ended with 0."""
    assert group.expectation is not None
    group.expectation = replace(group.expectation, finished=names, pending=names)
    group.retell()


def exit_well(group: Group, name: str) -> None:
    """End an agent as torchrun ends after its workers."""
    group.finish(name)
    group.say(name, Leave(reason="finished"))
    group.kill(name)


@pytest.mark.parametrize("least", [1, 2])
def test_a_worker_that_comes_back_when_its_peers_have_finished_is_let_go_and_costs_nothing(least: int) -> None:
    """Seen on the laptop: worker 1 was killed shortly before the end, and waited for ever when it was back."""
    group = group_of(3, min=least, budget=Budget(max_restarts=0))
    group.kill("w1")
    exit_well(group, "w0")
    exit_well(group, "w2")
    group.advance(10)
    group.start("w1", pod="w1")
    assert is_let_go(group, "w1")
    assert phase(group) == "finishing"
    group.kill("w1")
    group.advance(Limits().late_s)
    assert (phase(group), summary(group.job).restarts, summary(group.job).closed) == ("finished", {}, "")


def test_the_controller_hears_the_highest_step_once_a_world_no_longer_works_and_not_at_each_step() -> None:
    group = group_of(2)
    group.apply(Stepped(1, 1))
    before = summary(group.job)
    group.apply(Stepped(1, 40))
    assert summary(group.job) == before
    assert (before.phase, before.highest) == ("running", None)
    group.kill("w1")
    group.advance(1)
    assert (phase(group), summary(group.job).highest) == ("re-forming", 40)
    group.start("w1", pod="w1")
    group.come_all()
    assert (phase(group), summary(group.job).highest, summary(group.job).step) == ("running", None, 40)
    group.apply(Stepped(group.job.membership.generation, 50))
    group.finish("w0")
    group.finish("w1")
    assert (phase(group), summary(group.job).highest) == ("finished", 50)


def test_no_member_waits_after_the_end() -> None:
    group = group_of(2, min=2)
    group.finish("w0")
    group.start("stranger")
    group.expect("w0", "w1", "w2", min=2)
    group.start("w2")
    group.advance(300)
    assert not is_let_go(group, "w2"), "w1 may still fail, and need it to begin again"
    assert not group.agents["w1"].view.reform
    group.finish("w1")
    assert is_let_go(group, "w2")
    assert is_let_go(group, "stranger")
    group.start("w2", pod="another")
    assert is_let_go(group, "w2")


def test_a_member_that_is_expected_and_never_comes_is_waited_for_only_for_a_while() -> None:
    group = group_of(2)
    group.expect("w0", "w1", "w2", "w3", pending=("w3",))
    for name in ("w0", "w1"):
        group.finish(name)
    assert phase(group) == "finishing", "w2 runs, and will come and be let go"
    assert group.agents["w1"].view.done
    group.advance(Limits().late_s + 5)
    assert phase(group) == "finished"


def test_a_pod_that_was_never_scheduled_is_not_waited_for() -> None:
    group = group_of(2)
    group.expect("w0", "w1", "w2", pending=("w2",))
    for name in ("w0", "w1"):
        group.finish(name)
    assert phase(group) == "finished"


def test_a_member_that_may_work_on_behind_a_cut_is_waited_for_longer() -> None:
    group = group_of(2)
    group.cut("w1")
    group.finish("w0")
    group.advance(Limits().late_s + 5)
    assert phase(group) == "finishing"
    group.link("w1")
    group.finish("w1")
    assert phase(group) == "finished"


def test_a_working_member_is_not_disturbed_by_a_peer_that_is_lost() -> None:
    """It may be saving the model, which takes minutes."""
    group = group_of(3)
    group.finish("w0")
    group.kill("w1")
    group.advance(5)
    group.start("w1")
    group.advance(600)
    assert not group.agents["w2"].view.reform
    assert phase(group) == "running"
    group.finish("w2")
    assert is_let_go(group, "w1")


def test_a_working_member_is_not_disturbed_by_a_peer_that_fails_and_begins_again_afterwards() -> None:
    group = group_of(3, budget=Budget(max_restarts=0))
    group.finish("w0")
    group.fail("w1")
    group.come("w1")
    group.advance(120)
    assert not group.agents["w2"].view.reform
    group.finish("w2")
    assert group.world() == {"w1": 0}
    assert summary(group.job).restarts == {"collateral": 1}


def test_a_failure_at_the_end_that_leaves_too_few_for_another_world_does_not_wait_for_ever() -> None:
    group = group_of(3, min=2, budget=Budget(max_restarts=0))
    group.finish("w0")
    group.finish("w2")
    group.fail("w1")
    group.come_all()
    assert is_let_go(group, "w1")
    group.advance(Limits().late_s + 5)
    assert (phase(group), summary(group.job).restarts) == ("finished", {}), "even if it does not go"


def test_an_interrupted_member_begins_again_with_those_that_come_back_in_time() -> None:
    """Its peer finished instead of stopping, and it had yet to save what they trained."""
    group = group_of(3, min=2)
    group.kill("w1")
    group.advance(1.5)
    assert group.agents["w2"].view.reform
    group.finish("w0")
    group.come("w2")
    group.advance(10)
    assert not is_let_go(group, "w2")
    group.start("w1")
    assert len(group.world()) == 2


def test_an_interrupted_member_is_let_go_if_too_few_come_back() -> None:
    group = group_of(3, min=2)
    group.kill("w1")
    group.advance(1.5)
    group.finish("w0")
    group.come("w2")
    group.advance(Limits().late_s + 5)
    assert is_let_go(group, "w2")
    group.start("w1")
    assert is_let_go(group, "w1"), "and that stands"


@pytest.mark.parametrize("least", [1, 2])
def test_a_new_server_lets_members_go_that_only_the_controller_can_tell_it_about(least: int) -> None:
    group = group_of(3, min=least)
    group.kill("w1")
    exit_well(group, "w0")
    exit_well(group, "w2")
    group.start_server()
    say_finished(group, "w0", "w2")
    group.start("w1")
    assert not is_let_go(group, "w1"), "others may be on their way back to the new server"
    group.advance(20)
    assert is_let_go(group, "w1")
    group.advance(Limits().late_s)
    assert phase(group) == "finished"


@pytest.mark.parametrize("is_new_server", [False, True])
def test_a_member_that_was_cut_off_and_ended_meanwhile_is_not_waited_for(*, is_new_server: bool) -> None:
    """Its connection stood again, and broke before it said that it had finished: its peer, started again, waited for it for ever."""
    group = group_of(2, min=2)
    if is_new_server:
        group.kill("w0")
        group.start_server()
        group.retell()
        group.link("w1")
    else:
        group.kill("w0")
    group.kill("w1")
    group.start("w0")
    say_finished(group, "w1")
    group.advance(20)
    assert is_let_go(group, "w0")
    group.kill("w0")
    group.advance(Limits().late_s)
    assert (phase(group), summary(group.job).restarts) == ("finished", {})


def test_a_new_server_does_not_disturb_working_members() -> None:
    group = group_of(3)
    exit_well(group, "w0")
    group.kill("w1")
    group.start_server()
    say_finished(group, "w0")
    group.link("w2")
    group.advance(120)
    assert not group.agents["w2"].view.reform
    group.finish("w2")
    group.start("w1")
    assert is_let_go(group, "w1")


def test_a_finished_member_whose_agent_is_killed_is_let_go_when_it_is_started_again() -> None:
    group = group_of(2)
    group.finish("w0")
    group.kill("w0")
    group.start("w0", pod="w0")
    group.advance(60)
    assert not group.agents["w1"].view.reform
    group.finish("w1")
    assert is_let_go(group, "w0")


def test_a_member_that_is_always_restarted_begins_again() -> None:
    """With restartPolicy Always a container that ended with 0 is started again, in the same pod."""
    group = group_of(2)
    for name in ("w0", "w1"):
        exit_well(group, name)
    assert phase(group) == "finished"
    for name in ("w0", "w1"):
        group.start(name, pod=name)
    group.advance(10)
    group.come_all()
    assert len(group.world()) == 2
    assert phase(group) == "running"


def test_a_new_pod_in_the_place_of_one_that_had_done_its_work_does_not_begin_again() -> None:
    group = group_of(2)
    for name in ("w0", "w1"):
        exit_well(group, name)
    group.start("w0", pod="a new pod")
    assert is_let_go(group, "w0")
