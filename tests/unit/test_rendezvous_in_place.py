"""Check the rendezvous machine with members whose processes live on when the world changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendezvous_group import Group, group_of

from elastic.api.words import Cause
from elastic.membership.in_place import Change, Formed, Holds, Receives, Rung, Stage, Unable, Unformed
from elastic.membership.wire import Budget, Leaving, Ready, Started
from rendezvous.machine import Phase, Said, summary


def living(count: int, *, trained: int | None = 5, **fields: object) -> Group:
    """Make a group whose members train in one world, and change worlds in process."""
    group = group_of(count, is_able=True, **fields)
    if trained is not None:
        group.train(step=trained)
    return group


def reason(group: Group) -> str:
    return summary(group.job).reason


def restarts(group: Group) -> dict[str, int]:
    return dict(summary(group.job).restarts)


def generation(group: Group) -> int:
    return group.job.membership.generation


def told(group: Group, *names: str) -> set[Stage | None]:
    """Return the stages of the changes that these members were told of; of all, if none is named."""
    changes = [group.agents[name].view.change for name in names or group.agents]
    return {change.stage if change is not None else None for change in changes}


def is_restarting(group: Group) -> bool:
    return any(agent.view.reform for agent in group.agents.values())


# --- the first world


def test_a_world_is_formed_in_process_once_all_its_workers_wait_at_their_first_boundary() -> None:
    group = group_of(3)
    group.hello("w0")
    group.hello("w1")
    assert told(group) == {None}, "the others may not use the library at all"
    group.hello("w2")
    assert group.agents["w0"].view.change == Change(stage=Stage.FORM, round=1, step=0, donors=(0,))
    group.obey_all()
    assert told(group) == {Stage.RUN}
    assert (generation(group), restarts(group)) == (1, {})


def test_a_restored_state_is_given_by_those_that_have_the_newest_one() -> None:
    group = group_of(3)
    for name, step in (("w0", None), ("w1", 40), ("w2", 40)):
        group.hello(name, step=step)
    assert group.agents["w0"].view.change == Change(stage=Stage.FORM, round=1, step=40, donors=(1, 2))


def test_a_job_whose_workers_do_not_all_use_the_library_forms_its_world_from_the_environment() -> None:
    group = group_of(2)
    group.hello("w0")
    group.advance(119)
    assert told(group) == {None}
    group.advance(2)
    assert told(group, "w0") == {Stage.PLAIN}
    change = group.agents["w0"].view.change
    assert change is not None
    assert change.why == "the workers of w1 have not come to a first step within 120 s"
    group.kill("w1")
    group.advance(1.1)
    assert group.agents["w0"].view.reform == "the connection to w1 broke", "then all processes restart, as ever"


def test_members_with_different_numbers_of_workers_form_their_world_from_the_environment() -> None:
    group = group_of(2)
    group.hello("w0", workers=2)
    group.hello("w1", workers=1)
    assert told(group) == {Stage.PLAIN}


# --- a loss


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


def test_a_member_whose_lost_worker_is_replaced_goes_on_with_the_state_of_the_others() -> None:
    group = living(1, budget=Budget(max_restarts=1))
    group.fail("w0", status=9, replaced=True)
    assert told(group) == {Stage.ABORT}
    assert not is_restarting(group)
    group.obey_all()
    assert (set(group.world()), told(group), generation(group)) == ({"w0"}, {Stage.RUN}, 2)
    assert (reason(group), restarts(group)) == ("a worker of w0 ended with status 9; 1 member", {"user": 1})
    assert group.agents["w0"].trained == 5, "the state that the world began with"
    group.fail("w0", status=9, replaced=True)
    group.obey_all()
    assert "maxRestarts" in summary(group.job).closed, "it is charged like any failure"


def test_if_a_member_has_no_process_for_its_lost_worker_all_its_processes_restart() -> None:
    group = living(1)
    group.fail("w0", status=9, replaced=True)
    assert told(group) == {Stage.ABORT}
    group.fail("w0", status=1)
    assert is_restarting(group)
    group.come_all()
    assert (set(group.world()), restarts(group)) == ({"w0"}, {"user": 1})


def test_if_the_new_process_of_a_member_does_not_come_all_its_processes_restart() -> None:
    group = living(1)
    group.fail("w0", status=9, replaced=True)
    group.say("w0", Unable(words="the new process of local rank 1 has not come within 30 s"))
    assert is_restarting(group)
    group.come_all()
    assert (set(group.world()), restarts(group)) == ({"w0"}, {"user": 1})


def test_a_new_server_hears_of_a_replaced_worker_and_counts_it_once() -> None:
    group = living(1)
    group.fail("w0", status=9, replaced=True)
    group.start_server()
    group.retell()
    group.link("w0")
    group.say("w0", Formed(round=group.agents["w0"].formed))
    group.fail("w0", status=9, replaced=True)
    group.advance(20)
    assert not is_restarting(group)
    group.obey_all()
    assert (set(group.world()), told(group), restarts(group)) == ({"w0"}, {Stage.RUN}, {"user": 1})


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


# --- a planned change


def newcomer(group: Group, name: str) -> None:
    """Let a newcomer start, in a world of its own, and stand by."""
    group.start(name)
    assert group.agents[name].is_provisional
    assert group.agents[name].view.provisional
    group.hello(name)


def test_a_newcomer_starts_beside_the_world_and_all_stop_after_the_same_step() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    group.start("w2")
    assert (told(group, "w0", "w1"), generation(group)) == ({Stage.RUN}, 1), "the world trains while the newcomer starts"
    group.hello("w2")
    assert told(group, "w0", "w1") == {Stage.HOLD}
    group.agents["w0"].trained = 6
    group.obey("w0")
    assert told(group, "w1") == {Stage.HOLD}
    group.obey("w1")
    change = group.agents["w1"].view.change
    assert change is not None
    assert (change.stage, change.step) == (Stage.STOP, 7), "one had begun step 7"
    group.obey_all()
    assert set(group.world()) == {"w0", "w1", "w2"}
    assert {agent.trained for agent in group.agents.values()} == {7}
    assert (told(group), restarts(group), reason(group)) == ({Stage.RUN}, {}, "w2 joined; 3 members")


def test_a_leaver_goes_after_a_step_that_all_have_made() -> None:
    group = living(3)
    group.expect("w0", "w1", max=3, leaving=(Leaving(member="w2", by_s=30.0),))
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert (told(group, "w0", "w1"), group.agents["w2"].view.reform) == ({Stage.RUN}, "w2 is leaving (plan)")


def test_a_leaver_that_alone_has_the_newest_state_stays_for_one_more_world() -> None:
    group = living(3, max=4)
    group.fail("w0")
    group.agents["w2"].trained = 8
    group.expect("w0", "w1", max=4, leaving=(Leaving(member="w2", by_s=30.0),))
    group.obey_all()
    assert [set(names) for names in group.sealed.values()] == [{"w0", "w1", "w2"}, {"w1", "w2"}, {"w1"}]
    assert group.agents["w1"].trained == 9, "w2 gave its step 8, and both made one more before it left"


def test_a_loss_in_the_middle_of_a_planned_change_makes_one_change_of_both() -> None:
    for moment in range(3):
        group = living(3, max=4)
        group.expect("w0", "w1", "w2", "w3", max=4)
        newcomer(group, "w3")
        for name in ("w0", "w1", "w2")[:moment]:
            group.obey(name)
        if moment == 2:
            group.obey("w2")
            group.obey("w0")
        group.fail("w1")
        assert told(group, "w0", "w2") == {Stage.ABORT}
        group.obey_all()
        assert set(group.world()) == {"w0", "w2", "w3"}
        assert (told(group, "w0", "w2", "w3"), restarts(group)) == ({Stage.RUN}, {"user": 1})


def test_a_change_that_is_no_longer_wanted_is_called_off() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    group.obey("w0")
    group.kill("w2")
    group.advance(1.1)
    assert (told(group), generation(group)) == ({Stage.RUN}, 1)


def test_workers_that_have_ended_their_loop_are_left_alone() -> None:
    group = living(2, max=3)
    group.say("w0", Unable(words="the loop has ended"))
    group.agents["w0"].workers = 0
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    group.advance(30)
    assert (generation(group), is_restarting(group)) == (1, False)
    group.finish("w0")
    group.finish("w1")
    assert group.agents["w2"].view.finished or group.agents["w2"].view.reform


def test_a_loop_that_ends_during_a_planned_change_calls_it_off() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    group.obey("w0")
    group.say("w1", Unable(words="the loop has ended"))
    assert (told(group, "w0"), generation(group)) == ({Stage.RUN}, 1)


def test_a_newcomer_that_stands_by_waits_for_its_place() -> None:
    group = living(2, max=2)
    group.expect("w0", "w1", "w2", max=2)
    newcomer(group, "w2")
    assert (told(group, "w0", "w1"), group.agents["w2"].view.provisional) == ({Stage.RUN}, True)
    group.kill("w1")
    group.advance(1.1)
    group.obey_all()
    assert set(group.world()) == {"w0", "w2"}


# --- when forming fails


def test_a_world_that_cannot_be_formed_is_tried_three_times_and_then_all_restart() -> None:
    group = living(3)
    group.fail("w2")
    for _ in range(3):
        for name in ("w0", "w1"):
            group.obey(name)
        assert told(group, "w0", "w1") == {Stage.FORM}
        group.say("w0", Unformed(round=group.job.in_place.round, words="Connection refused"))
    assert group.agents["w1"].view.reform == (
        "w0 could not enter the world: Connection refused; all processes restart, because 3 attempts to form a world in process have failed"
    )
    assert restarts(group) == {"user": 1}
    group.come_all()
    assert {"w0", "w1"} <= set(group.world())


def test_a_member_that_never_enters_the_world_is_waited_for_a_few_seconds() -> None:
    group = living(2)
    group.complain("w0")
    group.advance(1.1)
    group.obey("w0")
    group.obey("w1")
    group.obey("w0")
    group.advance(3.0)
    assert told(group) == {Stage.FORM}
    group.advance(0.2)
    assert told(group) == {Stage.ABORT}
    group.obey_all()
    assert told(group) == {Stage.RUN}


def test_a_member_that_receives_the_state_has_more_time() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    group.obey_all_but("w2", Stage.FORM)
    for _ in range(5):
        group.advance(3.0)
        group.say("w2", Receives(round=group.job.in_place.round))
        assert told(group, "w0", "w1") == {Stage.FORM}
    group.advance(6.0)
    assert told(group, "w0", "w1") == {Stage.ABORT}


# --- messages that come late, twice, or from nobody


def test_answers_to_another_round_change_nothing() -> None:
    group = living(2)
    round = group.job.in_place.round
    for message in (
        Holds(round=round, step=9),
        Formed(round=round + 1),
        Unformed(round=round - 1),
        Unformed(round=round),
        Ready(after=1, alive=True, step=900, round=round),
        Ready(after=1, alive=True, step=900, round=round + 7),
    ):
        before = group.job.in_place, group.job.membership.world
        group.say("w0", message)
        assert (group.job.in_place, group.job.membership.world) == before
        assert group.job.membership.members["w0"].phase is Phase.RUNNING
    assert told(group) == {Stage.RUN}


def test_a_newcomer_gives_no_state_however_high_its_step() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    group.start("w2")
    group.hello("w2", step=900)
    group.obey_all()
    assert {agent.trained for agent in group.agents.values()} == {6}


# --- a new server


def test_a_server_that_starts_anew_finds_the_world_training_and_disturbs_nobody() -> None:
    group = living(3)
    round = group.job.in_place.round
    group.start_server()
    group.retell()
    for name in group.agents:
        group.link(name)
        group.say(name, Formed(round=group.agents[name].formed))
    group.advance(20)
    assert (told(group), generation(group), group.job.in_place.round) == ({Stage.RUN}, 1, round)
    group.kill("w1")
    group.advance(1.1)
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w2"}, {Stage.RUN})
    assert group.job.in_place.round > round


def test_a_server_that_starts_anew_hears_of_broken_communication() -> None:
    group = living(2)
    group.start_server()
    group.retell()
    for name in group.agents:
        group.link(name)
        group.complain(name)
        group.say(name, Formed(round=group.agents[name].formed))
    group.advance(1.1)
    group.obey_all()
    assert (told(group), generation(group)) == ({Stage.RUN}, 2)


@pytest.mark.parametrize("answered", range(8))
def test_a_server_that_starts_anew_in_the_middle_of_a_change_finishes_it(answered: int) -> None:
    group = living(3, max=4)
    group.expect("w0", "w1", "w2", "w3", max=4)
    newcomer(group, "w3")
    order = [name for _ in range(4) for name in ("w0", "w1", "w2", "w3")]
    for name in order[:answered]:
        group.obey(name)
    group.start_server()
    group.retell()
    for name, agent in group.agents.items():
        group.link(name)
        if agent.formed and agent.is_working:
            group.say(name, Formed(round=agent.formed))
        if agent.is_ready and agent.workers and agent.held is None:
            group.hello(name)
    for _ in range(10):
        group.obey_all()
        group.advance(5)
        group.come_all()
    assert set(group.world()) == {"w0", "w1", "w2", "w3"}
    assert restarts(group) == {}


# --- the donor of the state


def changed(group: Group, steps: dict[str, int | None]) -> list[str | None]:
    """Let the world break, and its members come with these steps; return the next world by rank."""
    before = generation(group)
    group.complain(next(iter(steps)))
    group.advance(1.2)
    for name, step in steps.items():
        group.agents[name].trained = step
        group.obey(name)
    world = group.job.membership.world
    assert world is not None
    assert world.generation == before + 1
    return list(world.by_rank)


def test_the_member_with_the_highest_step_becomes_rank_0() -> None:
    assert changed(living(3), {"w0": 5, "w1": 6, "w2": 6}) == ["w1", "w0", "w2"]


def test_of_equal_steps_the_lowest_rank_gives_the_state_and_ranks_stay() -> None:
    group = living(3)
    assert changed(group, {"w0": 6, "w1": 6, "w2": 5}) == ["w0", "w1", "w2"]
    change = group.agents["w2"].view.change
    assert change is not None
    assert (change.step, change.donors) == (6, (0, 1))


def test_a_member_without_a_complete_state_gives_none() -> None:
    assert changed(living(3), {"w0": None, "w1": None, "w2": 5})[0] == "w2"


def test_a_leaver_gives_no_state_while_a_member_that_stays_has_it() -> None:
    group = living(3)
    group.expect("w1", "w2", leaving=(Leaving(member="w0", by_s=30.0),))
    for name, step in (("w0", 8), ("w1", 8), ("w2", 7)):
        group.agents[name].trained = step
    group.fail("w0")
    group.obey_all()
    assert set(group.world()) == {"w1", "w2"}


def test_the_one_with_the_newest_state_has_a_place_where_the_sizes_take_fewer() -> None:
    group = living(4, sizes=(2, 4))
    group.kill("w1")
    assert changed(group, {"w0": None, "w2": None, "w3": 4}) == ["w3", "w0"]


@given(steps=st.lists(st.none() | st.integers(0, 3), min_size=4, max_size=4).filter(any))
def test_rank_0_holds_the_newest_complete_state(steps: list[int | None]) -> None:
    by_rank = changed(living(4), {f"w{index}": step for index, step in enumerate(steps)})
    newest = max(step for step in steps if step is not None)
    assert by_rank[0] == f"w{steps.index(newest)}"


def test_a_hang_restarts_all_processes() -> None:
    group = living(2, budget=Budget(hang_s=30.0))
    group.started("w0", "w1")
    group.advance(36)
    assert is_restarting(group)
    assert restarts(group) == {Cause.HANG.value: 1}


def test_a_planned_change_waits_until_the_world_before_it_is_formed() -> None:
    group = living(2, max=4)
    group.expect("w0", "w1", "w2", max=4)
    newcomer(group, "w2")
    group.obey_all_but("w2", Stage.FORM)
    assert set(group.world()) == {"w0", "w1", "w2"}
    group.expect("w0", "w1", "w2", "w3", max=4)
    newcomer(group, "w3")
    assert told(group, "w0", "w1", "w2") == {Stage.FORM}, "a world that does not stand cannot train on if the change is called off"
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2", "w3"}, {Stage.RUN})


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_member_that_never_heard_of_its_world_answers_the_change_that_ends_it(is_cut: bool) -> None:
    group = living(3)
    group.fail("w2")
    group.obey("w0")
    group.agents["w1"].is_linked = False
    round = group.job.in_place.round
    group.apply(Said("w1", group.agents["w1"].incarnation, Ready(after=1, alive=True, step=5, round=round)))
    assert told(group, "w0") == {Stage.FORM}, "the view with the world is lost on its way to w1, or a newer one took its place"
    group.say("w0", Unformed(round=group.job.in_place.round, words="Connection refused"))
    agent = group.agents["w1"]
    agent.is_ready, agent.alive, agent.step, agent.round = True, True, 5, round
    if is_cut:
        agent.round = group.job.in_place.round
    group.link("w1")
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert (told(group, "w0", "w1"), {group.agents[name].trained for name in ("w0", "w1")}) == ({Stage.RUN}, {5})


def test_a_restored_state_is_not_lost_if_a_new_server_hears_of_workers_before_their_step() -> None:
    group = group_of(2)
    group.hello("w0", step=40)
    group.start_server()
    group.retell()
    group.agents["w1"].workers = 1
    for name in group.agents:
        group.link(name)
    for name in group.agents:
        group.hello(name, step=40)
    change = group.agents["w0"].view.change
    assert change is not None
    assert (change.stage, change.step) == (Stage.FORM, 40)


def called_off(group: Group) -> None:
    """Let a planned change begin, and be called off."""
    group.expect("w0", "w1", "w9", max=3)
    newcomer(group, "w9")
    group.obey("w0")
    group.kill("w9")
    group.expect("w0", "w1", max=3)
    group.advance(1.1)
    assert told(group) == {Stage.RUN}


def test_broken_communication_is_heard_after_a_change_was_called_off() -> None:
    group = living(2, max=3)
    called_off(group)
    group.complain("w0")
    group.advance(1.1)
    assert told(group) == {Stage.ABORT}
    group.obey_all()
    assert (told(group), restarts(group)) == ({Stage.RUN}, {})


@pytest.mark.parametrize("stage", [Stage.HOLD, Stage.STOP])
def test_broken_communication_is_heard_during_a_planned_change(stage: Stage) -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    if stage is Stage.STOP:
        group.obey("w0")
        group.obey("w1")
    assert told(group, "w0", "w1") == {stage}
    group.complain("w0")
    assert told(group, "w0", "w1") == {Stage.ABORT}
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2"}, {Stage.RUN})


def test_a_new_server_disturbs_nobody_after_a_change_was_called_off() -> None:
    group = living(2, max=3)
    called_off(group)
    for agent in group.agents.values():
        agent.round = group.job.in_place.round
    group.start_server()
    group.retell()
    for name, agent in group.agents.items():
        group.link(name)
        group.say(name, Formed(round=agent.formed))
    group.advance(20)
    assert (told(group), generation(group)) == ({Stage.RUN}, 1)


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
