"""Limits by cause and within a window, restarts that bring nothing forward, and training that stands still: in virtual time."""

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import Budget, Charge, Ended, Ready
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.views import summary


def crash(group: Group, name: str = "w1") -> None:
    """Let a worker fail, and everybody form the next world, if there is one."""
    group.fail(name, 1)
    group.advance(1.1)
    group.come_all()


def reached(group: Group, step: int) -> None:
    """Report a step in the current world."""
    group.apply(Stepped(group.job.membership.generation, step))


def closed(group: Group) -> str:
    return summary(group.job).closed


def test_restarts_older_than_the_window_no_longer_count() -> None:
    group = group_of(2, budget=Budget(max_restarts=1, window_s=600))
    for _ in range(4):
        crash(group)
        assert not closed(group)
        group.advance(601)
    assert summary(group.job).restarts == {"user": 4}
    crash(group)
    crash(group)
    assert closed(group) == "a worker of w1 ended with status 1. Restarts used: 1 of 1 within 600 s."


def test_a_restarted_server_knows_the_window_from_the_controller() -> None:
    told = (Charge(cause="user", age_s=500.0), Charge(cause="user", age_s=50.0))
    group = group_of(2, budget=Budget(max_restarts=2, window_s=600), restarts={"user": 9}, charged=told)
    group.advance(120)  # by now the older one has left the window
    crash(group)
    assert not closed(group)
    crash(group)
    assert closed(group)


def test_the_controllers_later_words_do_not_date_a_restart_again() -> None:
    budget = Budget(max_restarts=1, window_s=600)
    group = group_of(2, budget=budget)
    crash(group)
    for _ in range(3):
        group.expect("w0", "w1", budget=budget, restarts={"user": 1}, charged=(Charge(cause="user", age_s=1.0),))
    group.advance(601)
    crash(group)
    assert not closed(group)


def test_a_cause_with_a_limit_of_its_own_is_held_to_that_one_alone() -> None:
    group = group_of(2, budget=Budget(max_restarts=0, by_cause={"user": 2}))
    crash(group)
    crash(group)
    assert not closed(group)
    crash(group)
    assert closed(group).endswith(" Restarts used by cause user: 2 of 2.")


def failed_with(group: Group, error: str) -> None:
    group.fail("w1", 1, rank=1, error=error)
    group.advance(1.1)
    group.come_all()


AGAIN = " The last {} attempts ended with the same error before a step was reported."


def test_a_bug_that_every_attempt_meets_is_told_as_one() -> None:
    group = group_of(2, budget=Budget(max_restarts=2))
    failed_with(group, "KeyError: 'lr'")
    failed_with(group, "OSError: no route")
    failed_with(group, "OSError: no route")
    assert closed(group) == ("rank 1: OSError: no route. Restarts used: 2 of 2. A worker of w1 ended with status 1." + AGAIN.format(2))


def test_a_job_may_end_at_the_second_attempt_that_fails_like_the_first() -> None:
    group = group_of(2, budget=Budget(max_restarts=5, same_error=1))
    failed_with(group, "KeyError: 'lr'")
    failed_with(group, "OSError: no route")
    assert not closed(group)
    failed_with(group, "OSError: no route")
    assert closed(group) == f"rank 1: OSError: no route.{AGAIN.format(2)} A worker of w1 ended with status 1."


@pytest.mark.parametrize("error", ["", "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711"])
def test_attempts_whose_error_tells_nothing_about_the_program_are_not_alike(error: str) -> None:
    group = group_of(2, budget=Budget(max_restarts=5, same_error=1))
    for _ in range(4):
        failed_with(group, error)
    assert not closed(group)


def test_attempts_that_lasted_are_not_alike_if_training_reports_no_steps() -> None:
    group = group_of(2, budget=Budget(max_restarts=5, same_error=1))
    for _ in range(4):
        group.advance(group.limits.progress_s)
        failed_with(group, "OSError: no route")
    assert not closed(group)


def test_an_error_after_a_step_is_not_one_that_every_attempt_meets() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
    failed_with(group, "OSError: no route")
    reached(group, 5)
    failed_with(group, "OSError: no route")
    assert closed(group).startswith("rank 1: OSError: no route. Restarts used: 1 of 1.")


def test_a_worker_that_was_killed_for_its_memory_is_charged_to_memory() -> None:
    """It counted as a failure of the program, with nothing but status 137."""
    group = group_of(3, budget=Budget(max_restarts=5, by_cause={"outOfMemory": 1}))
    group.fail("w1", 137, rank=1, error="the kernel killed the worker", out_of_memory=True)
    group.fail("w0", 1)
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).restarts == {"outOfMemory": 1, "collateral": 1}
    world = group.job.membership.world
    assert world is not None
    assert (world.cause, world.reason) == (
        "outOfMemory",
        "a worker of w1 ended with status 137, SIGKILL (rank 1: the kernel killed the worker); 3 members",
    )
    group.fail("w1", 137, rank=1, error="the kernel killed the worker", out_of_memory=True)
    group.advance(1.1)
    group.come_all()
    assert closed(group) == (
        "rank 1: the kernel killed the worker. Restarts used by cause outOfMemory: 1 of 1. A worker of w1 ended with status 137, SIGKILL."
        + AGAIN.format(2)
    )


def test_losses_are_limited_only_if_the_budget_says_so() -> None:
    group = group_of(3, budget=Budget(max_restarts=0, by_cause={"disruption": 1}), min=1)
    group.leave("w2")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}
    group.leave("w1")
    group.come_all()
    assert closed(group) == "w1 left: SIGTERM. Restarts used by cause disruption: 1 of 1."


def test_a_pod_that_ended_and_was_never_heard_of_is_charged_once() -> None:
    group = group_of(2, budget=Budget(max_restarts=1))
    end = Ended(member="w2", pod_uid="a-pod", cause="user", is_last=True)
    for _ in range(3):
        group.expect("w0", "w1", "w2", budget=Budget(max_restarts=1), ended=(end,))
    assert summary(group.job).restarts == {"user": 1}
    assert len(group.world()) == 2, "the others work on"


def test_an_agent_that_cannot_start_uses_up_the_restarts_though_no_server_ever_heard_of_it() -> None:
    """Torchrun had a wrong flag, and the kubelet started it again and again."""
    group, budget = Group(), Budget(max_restarts=1)
    for run in range(2):
        assert not summary(group.job).closed
        end = Ended(member="w0", pod_uid="a-pod", run=run, cause="user", usage_error=True)
        for _ in range(2):
            group.expect("w0", budget=budget, ended=(end,))
    assert summary(group.job).restarts == {"user": 2}
    assert closed(group) == ("the container of w0 ended before it came to the rendezvous (user). Restarts used: 1 of 1.")


def test_an_agent_that_cannot_start_again_explains_no_loss() -> None:
    """Its former run was in the world, and what ended that is not known."""
    group = group_of(2, budget=Budget(max_restarts=5))
    pod = group.job.membership.members["w1"].pod
    group.leave("w1")
    group.expect("w0", "w1", ended=(Ended(member="w1", pod_uid=pod, run=1, cause="user", usage_error=True),), budget=Budget(max_restarts=5))
    group.come_all()
    assert summary(group.job).restarts == {"disruption": 1, "user": 1}


def test_an_end_in_place_that_nobody_explains_is_not_charged() -> None:
    """Its agent may have found no server for ten minutes."""
    group = group_of(2, budget=Budget(max_restarts=1))
    group.expect("w0", "w1", "w2", budget=Budget(max_restarts=1), ended=(Ended(member="w2", pod_uid="a-pod", cause="user"),))
    assert summary(group.job).restarts == {}


def test_restarts_in_a_row_without_a_step_forward_end_the_job() -> None:
    group = group_of(2, budget=Budget(without_progress=2))
    reached(group, 10)
    for step in (5, 10):
        crash(group)
        reached(group, step)  # from the checkpoint, but not beyond where it was
        assert not closed(group)
    crash(group)
    assert closed(group) == (
        "a worker of w1 ended with status 1. 2 restarts in a row, as many as maxRestartsWithoutProgress allows, brought no step forward."
    )


def test_a_step_beyond_all_earlier_ones_begins_the_count_again() -> None:
    group = group_of(2, budget=Budget(without_progress=1))
    for step in (10, 11, 12, 13):
        reached(group, step)
        assert summary(group.job).fruitless == 0
        crash(group)
        assert (summary(group.job).fruitless, summary(group.job).step) == (1, step)
    crash(group)
    assert closed(group)


def test_losses_count_as_restarts_in_vain_but_changes_that_were_asked_for_do_not() -> None:
    group = group_of(3, budget=Budget(max_restarts=0, without_progress=1), min=1)
    group.expect("w0", "w1", budget=Budget(max_restarts=0, without_progress=1), min=1)
    group.come_all()
    assert (len(group.world()), summary(group.job).fruitless) == (2, 0)
    group.kill("w1")
    group.advance(1.1)
    group.come_all()
    assert summary(group.job).fruitless == 1


def test_without_reported_steps_a_world_that_lived_long_enough_has_made_progress() -> None:
    group = group_of(2, budget=Budget(without_progress=1))
    for _ in range(3):
        group.advance(301)
        crash(group)
        assert not closed(group)
    group.advance(200)
    crash(group)
    assert closed(group)


def test_a_restarted_server_goes_on_counting_restarts_in_vain() -> None:
    group = group_of(2, budget=Budget(without_progress=2), fruitless=2, step=40)
    reached(group, 40)
    crash(group)
    assert closed(group)


def test_messages_that_a_restarted_server_heard_before_the_controller_spoke_count_too() -> None:
    group = group_of(2)
    reached(group, 7)
    budget = Budget(without_progress=1)
    group.start_server()
    for name in group.agents:
        group.link(name)
    reached(group, 41)
    assert summary(group.job).fruitless is None, "it has yet to be told"
    group.expect("w0", "w1", budget=budget, fruitless=1, step=40)
    assert summary(group.job).fruitless == 0
    crash(group)
    assert not closed(group)


def test_training_that_reports_no_further_step_is_restarted_by_cause_hang() -> None:
    group = group_of(2, budget=Budget(max_restarts=1, hang_s=60))
    group.started("w0", "w1")
    reached(group, 1)
    group.advance(50)
    reached(group, 2)
    group.advance(59)
    assert not group.agents["w0"].view.reform
    reached(group, 2)  # the same step again is no sign of life
    group.advance(6)
    assert group.agents["w0"].view.reform == group.agents["w1"].view.reform == "training reported no further step for 60 s"
    group.come_all()
    world = summary(group.job)
    assert (world.restarts, world.phase, len(group.world())) == ({"hang": 1}, "running", 2)
    assert world.rescale is not None
    assert world.rescale.cause == "hang"
    group.started("w0", "w1")
    group.advance(66)
    group.come_all()
    assert closed(group) == "training reported no further step for 60 s. Restarts used: 1 of 1."


def test_a_job_that_never_reported_is_not_taken_for_hanging() -> None:
    group = group_of(2, budget=Budget(hang_s=60))
    group.started("w0", "w1")
    group.advance(600)
    assert len(group.sealed) == 1


def test_workers_that_do_not_run_yet_or_have_finished_do_not_hang() -> None:
    group = group_of(2, budget=Budget(hang_s=60), step=100)
    group.advance(600)
    assert not group.agents["w0"].view.reform, "not all of them have started"
    group.started("w0", "w1")
    group.finish("w1")
    group.advance(600)
    assert len(group.sealed) == 1


def test_after_a_restart_of_the_server_a_hang_is_noticed_from_then_on() -> None:
    group = group_of(2, budget=Budget(max_restarts=1, hang_s=60), step=100)
    group.started("w0", "w1")
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.retell()
    group.advance(59)
    assert not group.agents["w0"].view.reform
    group.advance(10)
    assert group.agents["w0"].view.reform


def test_workers_that_were_killed_because_they_did_not_stop_are_told_with_the_change() -> None:
    """A script that needed 40 s to save was killed after 30 s at every change, and nothing said so."""
    group = group_of(2, budget=Budget(max_restarts=1))
    group.started("w0", "w1")
    group.start("w2")
    group.expect("w0", "w1", "w2")
    assert group.agents["w0"].view.reform
    for name, killed in (("w0", 2), ("w1", 1)):
        agent = group.agents[name]
        agent.is_ready = True
        group.say(name, Ready(after=agent.generation, store=agent.store, killed=killed))
    group.advance(6)
    world = summary(group.job)
    assert world.rescale is not None
    assert (len(world.members), world.rescale.killed) == (3, 3)
