"""Check what the rendezvous engine does after a loss or a failure while the other processes live on."""

import pytest
from living_group import generation, is_restarting, living, newcomer, reason, restarts, told
from rendezvous_group import Group, group_of

from elastic.api.words import Cause
from elastic.membership.wire import Budget, Ready, Started
from elastic_training.rendezvous.engine import in_place
from elastic_training.rendezvous.engine.broken_communication import FREE, LONGEST_PAUSE_S, PAUSE_S
from elastic_training.rendezvous.engine.messages.in_place import Rung, Stage, Unformed
from elastic_training.rendezvous.engine.views import summary


def test_after_a_loss_the_others_go_on_in_process() -> None:
    group = living(3)
    group.kill("w1")
    group.advance(1.1)
    assert told(group) == {Stage.ABORT}
    assert not is_restarting(group)
    group.obey_all()
    assert set(group.world()) == {"w0", "w2"}
    assert told(group) == {Stage.RUN}
    assert (reason(group), restarts(group)) == ("the connection to w1 broke; 2 members", {"disruption": 1})
    rescale = summary(group.job).rescale
    assert rescale is not None
    assert rescale.rung == Rung.IN_PROCESS


@pytest.mark.parametrize(("warm", "rung"), [({"w0", "w1"}, Rung.WARM), ({"w1"}, Rung.PLAIN)])
def test_a_world_whose_processes_restart_says_whether_the_fork_server_started_them(warm: set[str], rung: Rung) -> None:
    group = group_of(3)
    first = summary(group.job).rescale
    assert first is not None
    assert first.rung == ""
    group.kill("w2")
    group.advance(1.1)
    group.come_all()
    for name in ("w0", "w1"):
        group.say(name, Started(generation=2, warm=name in warm))
    second = summary(group.job).rescale
    assert second is not None
    assert second.rung == rung


def test_a_peer_that_cannot_be_reached_and_a_broken_connection_are_signs_of_one_loss() -> None:
    group = living(3)
    group.kill("w1")
    group.complain("w0")
    group.advance(0.2)
    assert told(group) == {Stage.ABORT}
    group.obey_all()
    assert set(group.world()) == {"w0", "w2"}
    assert restarts(group) == {"disruption": 1}


def test_a_failed_worker_is_charged_and_its_member_comes_back_as_a_newcomer() -> None:
    group = living(3)
    group.fail("w1", status=3)
    assert told(group, "w0", "w2") == {Stage.ABORT}, "nobody waits for the agent of the worker that failed"
    group.obey_all()
    assert set(group.world()) == {"w0", "w2"}
    group.come("w1")
    assert group.agents["w1"].is_provisional
    group.hello("w1")
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2"}, {Stage.RUN})
    assert (restarts(group), generation(group)) == ({"user": 1}, 3)


def test_a_world_below_its_minimum_waits_for_the_failed_member_with_the_state_in_memory() -> None:
    group = living(2, min=2)
    group.fail("w1")
    group.obey_all()
    assert group.agents["w0"].is_ready
    group.come("w1")
    group.hello("w1")
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    change = group.agents["w1"].view.change
    assert change is not None
    assert change.step == 5


@pytest.mark.parametrize("is_new_server", [False, True])
@pytest.mark.parametrize("step", [None, 3, 5])
def test_a_failed_member_that_reconnects_with_new_processes_is_no_survivor(is_new_server: bool, step: int | None) -> None:
    """Its agent still names the world that it left. A server that had not heard of the failure took the new processes for the old ones."""
    group = living(2, min=2, max=2)
    group.fail("w1")
    group.obey("w0")
    group.come("w1")
    group.cut("w0")
    group.hello("w1", step=step)
    if is_new_server:
        group.start_server()
        group.retell()
    else:
        group.cut("w1")
    group.link("w1")
    member = group.job.membership.members["w1"]
    assert (member.generation, member.step, member.alive) == (0, None, True)
    group.link("w0")
    group.advance(20)
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert group.agents["w1"].trained == 5, "the state of the survivor"


def test_a_failed_member_that_starts_again_while_its_world_waits_is_no_survivor() -> None:
    """Its agent still names the world that it left, but its new processes have the state of no world."""
    group = living(2, min=2, max=2)
    group.fail("w1")
    group.obey("w0")
    group.come("w1")
    group.cut("w0")
    group.hello("w1", step=5)
    group.say("w1", Ready(after=1, store="w1:1", alive=True, step=5, round=group.job.in_place.round))
    assert group.job.membership.members["w1"].generation == 0
    group.advance(1.1)
    group.come_all()
    group.start("w0")
    group.advance(6)
    assert set(group.world()) == {"w0", "w1"}


def test_several_losses_and_one_while_the_others_come_make_one_world() -> None:
    group = living(5)
    group.kill("w1")
    group.kill("w3")
    group.complain("w0")
    group.advance(0.2)
    group.obey("w0")
    group.kill("w4")
    group.advance(0.2)
    group.obey_all()
    assert set(group.world()) == {"w0", "w2"}
    assert restarts(group) == {"disruption": 3}


def test_a_loss_while_the_world_forms_begins_another_round() -> None:
    group = living(4)
    group.fail("w3")
    for name in ("w0", "w1", "w2"):
        group.obey(name)
    assert told(group, "w0", "w1", "w2") == {Stage.FORM}
    group.obey("w0")
    group.fail("w2")
    assert told(group, "w0", "w1") == {Stage.ABORT}
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert restarts(group) == {"user": 2}


def test_if_no_process_lives_on_all_restart() -> None:
    group = living(2)
    group.fail("w0")
    group.fail("w1")
    assert is_restarting(group)
    group.come_all()
    group.advance(0.1)
    assert set(group.world()) == {"w0", "w1"}
    assert told(group) == {None}


def test_if_every_state_is_half_written_all_restart() -> None:
    group = living(3)
    group.fail("w2")
    group.agents["w0"].trained = group.agents["w1"].trained = None
    group.obey_all()
    assert group.agents["w0"].view.reform.endswith("all processes restart, because no worker has a complete state of training")
    group.come_all()
    group.advance(0.1)
    assert set(group.world()) == {"w0", "w1", "w2"}


def test_before_the_first_world_has_trained_a_loss_needs_no_state() -> None:
    group = group_of(3)
    for name in group.agents:
        group.hello(name)
    group.fail("w2")
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    change = group.agents["w0"].view.change
    assert change is not None
    assert (change.stage, change.step) == (Stage.RUN, 0)


def test_broken_communication_that_no_loss_explains_forms_the_same_world_once() -> None:
    group = living(3, budget=Budget(max_restarts=0, without_progress=0))
    group.complain("w0")
    group.advance(0.9)
    assert told(group) == {Stage.RUN}, "for a moment a peer's loss may explain it"
    group.advance(0.2)
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2"}, {Stage.RUN})
    assert (reason(group), restarts(group)) == ("w0 could not reach a peer, and no peer was lost or failed; 3 members", {})
    group.train(step=8)
    group.complain("w1")
    group.advance(1.1)
    assert is_restarting(group)
    assert "the communication of its workers broke twice within a few steps" in group.agents["w0"].view.reform


def break_twice(group: Group, *, pause_s: float = 0.0) -> None:
    """Let the communication break twice within a few steps, so that all processes restart, and form the next world in process."""
    for _ in range(2):
        group.complain("w0")
        group.advance(1.1)
        if pause_s:
            group.advance(pause_s - 1.2)
            assert told(group) == {Stage.RUN}, "the network may come back"
            group.advance(0.2)
        group.obey_all()
    group.come_all()
    for name in list(group.world()):
        group.hello(name)
    group.obey_all()


def test_workers_that_never_reach_each_other_do_not_restart_for_ever() -> None:
    """Nobody was lost and nobody failed, so nothing counted the restarts."""
    group = living(2, budget=Budget(max_restarts=0))
    break_twice(group)
    for number in range(1, FREE):
        assert restarts(group) == {"disruption": number}
        group.train(step=4)
        break_twice(group, pause_s=min(PAUSE_S * 2 ** (number - 1), LONGEST_PAUSE_S))
    assert restarts(group) == {"disruption": FREE}
    break_twice(group, pause_s=PAUSE_S * 2 ** (FREE - 1))
    assert restarts(group) == {"disruption": FREE, "user": 1}
    assert group.job.accounting.closed == "w0 could not reach a peer, and no peer was lost or failed. Restarts used: 0 of 0."


def test_broken_communication_of_a_job_that_gets_further_is_free_and_without_pauses() -> None:
    group = living(2, budget=Budget(max_restarts=0))
    for number in range(1, FREE + 3):
        group.train(step=100 * number)
        break_twice(group)
        assert restarts(group) == {"disruption": number}


def test_a_budget_for_disruptions_holds_for_broken_communication_too() -> None:
    group = living(2, budget=Budget(max_restarts=9, by_cause={"disruption": 1}))
    break_twice(group)
    break_twice(group, pause_s=PAUSE_S)
    assert group.job.accounting.closed.endswith(" Restarts used by cause disruption: 1 of 1.")


def test_a_loss_that_explains_broken_communication_ends_the_pause() -> None:
    group = living(3)
    break_twice(group)
    group.complain("w0")
    group.kill("w1")
    group.advance(1.1)
    assert told(group, "w0", "w2") == {Stage.ABORT}


def test_a_world_that_can_never_be_formed_counts_its_restarts() -> None:
    group = living(3, budget=Budget(max_restarts=0))
    group.complain("w0")
    group.advance(1.1)
    for _ in range(in_place.ATTEMPTS):
        assert restarts(group) == {}
        group.obey_all_but("w0", Stage.FORM)
        group.say("w0", Unformed(round=group.job.in_place.round, words="Connection refused"))
    group.come_all()
    assert restarts(group) == {"disruption": 1}


def test_broken_communication_long_after_the_last_one_changes_worlds_again() -> None:
    group = living(2)
    for step in (5, 20):
        group.train(step=step)
        group.complain("w0")
        group.advance(1.1)
        group.obey_all()
    assert (told(group), generation(group)) == ({Stage.RUN}, 3)


def test_a_member_whose_processes_do_not_come_is_given_up() -> None:
    group = living(3)
    group.fail("w2")
    group.obey("w0")
    group.advance(41)
    assert group.agents["w1"].view.reform
    group.obey("w0")
    assert set(group.world()) == {"w0"}


def test_a_hang_restarts_all_processes() -> None:
    group = living(2, budget=Budget(hang_s=30.0))
    group.started("w0", "w1")
    group.advance(36)
    assert is_restarting(group)
    assert restarts(group) == {Cause.HANG.value: 1}


def test_a_worker_that_the_library_ended_is_not_charged_to_the_user() -> None:
    group = living(3, budget=Budget(max_restarts=0))
    group.fail("w1", status=4, by_library=True, error="the main thread is stuck")
    assert told(group, "w0", "w2") == {Stage.ABORT}
    group.obey_all()
    assert (set(group.world()), restarts(group)) == ({"w0", "w2"}, {Cause.DISRUPTION.value: 1})
    assert reason(group) == "the training library ended a worker of w1: the main thread is stuck; 2 members"
    group.come("w1")
    group.hello("w1")
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2"}, {Stage.RUN})


def test_peers_that_fail_with_a_worker_that_the_library_ended_are_not_charged_either() -> None:
    group = living(3, budget=Budget(max_restarts=0))
    group.complain("w0")
    group.advance(1.1)
    group.fail("w0", status=1)
    group.fail("w1", status=4, by_library=True)
    group.obey_all()
    assert Cause.USER.value not in restarts(group)


def test_a_worker_that_the_library_ended_in_a_world_that_restarts_is_not_charged_to_the_user() -> None:
    group = group_of(2, budget=Budget(max_restarts=0))
    group.fail("w1", status=3, by_library=True)
    assert group.agents["w0"].view.reform.startswith("the training library ended a worker of w1")
    group.come_all()
    assert (set(group.world()), restarts(group)) == ({"w0", "w1"}, {Cause.DISRUPTION.value: 1})


# --- members that come back with the state of a former world


def stand_by_with(group: Group, name: str, *, step: int) -> None:
    """Let a member that was cut off stand at the barrier with living processes, and connect again."""
    agent = group.agents[name]
    agent.is_ready = agent.alive = True
    agent.step = step
    group.link(name)


def test_a_member_that_comes_back_after_the_others_went_on_restarts_its_processes() -> None:
    """The others may have made the step that it holds once more, without it. Equal steps would hide that the states differ."""
    group = living(3)
    group.cut("w2")
    group.advance(1.1)
    for name in ("w0", "w1"):
        group.agents[name].trained = 4
    group.obey_all()
    group.train("w0", "w1", step=5)
    stand_by_with(group, "w2", step=5)
    assert told(group, "w0", "w1") == {Stage.RUN}, "no world is formed with its state"
    assert group.agents["w2"].view.reform == "the world went on without this member"
    group.come("w2")
    group.hello("w2")
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2"}, {Stage.RUN})


def test_a_state_that_comes_back_from_a_former_world_is_no_state_of_the_present_one() -> None:
    """The only holder of the state was silent. When it came back, the newcomer began again with random weights, and it kept its own."""
    group = living(2, trained=0, min=2, max=3)
    group.expect("w0", "w1", "w2", min=2, max=3)
    newcomer(group, "w2")
    group.kill("w1")
    group.advance(1.1)
    group.obey("w0")
    group.cut("w0", noticed=False)
    group.advance(5.1)
    assert told(group, "w2") == {Stage.FORM}
    group.advance(5)
    group.obey("w2")
    group.advance(20)
    assert told(group, "w2") == {Stage.ABORT}, "it is alone, without a state"
    stand_by_with(group, "w0", step=0)
    assert told(group, "w2") == {Stage.ABORT}
    group.come("w0")
    group.hello("w0")
    group.advance(6)
    group.come_all()
    group.advance(6)
    assert set(group.world()) == {"w0", "w2"}
    assert told(group) == {None}, "all processes have started again"


def test_a_member_that_was_given_up_and_comes_back_at_work_restarts_its_processes() -> None:
    """It counted as a newcomer whose processes had yet to start, and nobody told it so: it never trained again."""
    group = living(3, min=3)
    group.kill("w1")
    group.cut("w2")
    group.advance(1.1)
    group.obey("w0")
    group.link("w2")
    assert group.agents["w2"].view.reform == "the world went on without this member"
    group.come("w2")
    assert group.agents["w2"].is_provisional


def test_a_newcomer_that_a_new_server_meets_while_its_processes_start_restarts_with_the_others() -> None:
    """The server took it into a world of processes that restart, in which its own lived on, and counted its way back as a disruption."""
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    group.start("w2")
    group.start_server()
    group.retell()
    group.agents["w2"].is_ready = True
    group.link("w2")
    group.say("w2", Ready(after=0, store="w2:0", alive=True))
    assert group.agents["w2"].view.reform == "all processes of the job restart"
