"""Check the rendezvous machine with members whose processes survive a change of the world.

These members may come to the barrier uncalled while their processes live, and tell the step of their state.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendezvous_group import Group, group_of

from elastic.api.words import Cause
from elastic.membership.wire import Budget, Failed, Leaving, Ready
from rendezvous.machine import Stepped, summary

ALIVE = "came to the barrier uncalled, with live processes"


def reason(group: Group) -> str:
    return summary(group.job).reason


def restarts(group: Group) -> dict[str, int]:
    return dict(summary(group.job).restarts)


# --- a member that comes uncalled


def test_a_member_that_comes_uncalled_while_its_processes_live_is_charged_to_nobody() -> None:
    """In process, each survivor comes uncalled when its collective breaks. The machine took that for the end of a worker and charged it."""
    budget = Budget(max_restarts=0, without_progress=0)
    group = group_of(3, budget=budget)
    group.come("w0", alive=True)
    group.advance(0.9)
    assert set(group.world()) == {"w1", "w2"}, "for a moment a peer's loss may explain it"
    group.advance(0.2)
    assert {group.agents[name].view.reform for name in ("w1", "w2")} == {f"w0 {ALIVE}"}
    group.come_all()
    assert set(group.world()) == {"w0", "w1", "w2"}
    assert (reason(group), summary(group.job).closed) == (f"w0 {ALIVE}, and no peer was lost or failed; 3 members", "")
    world = group.job.membership.world
    assert world is not None
    assert world.cause == Cause.DISRUPTION
    assert restarts(group) == {}
    assert group.job.progress.fruitless == 0


def test_without_that_word_the_same_is_a_failure() -> None:
    group = group_of(3)
    group.come("w0")
    group.advance(1.1)
    group.come_all()
    assert (restarts(group), reason(group)) == ({"user": 1}, "a worker of w0 ended; 3 members")


def test_the_loss_of_a_peer_explains_survivors_that_came_uncalled() -> None:
    group = group_of(3)
    for name in ("w0", "w1"):
        group.come(name, alive=True)
    group.kill("w2")
    group.advance(0.5)
    assert set(group.world()) == {"w0", "w1"}, "the two are signs of one loss, so w2 has less time to come back"
    assert reason(group) == "the connection to w2 broke; 2 members"
    assert restarts(group) == {"disruption": 1}


def test_a_loss_that_was_seen_before_the_survivors_came_is_the_reason() -> None:
    group = group_of(3)
    group.cut("w2")
    group.advance(0.9)
    group.come("w0", alive=True)
    group.come("w1", alive=True)
    group.advance(0.05)
    assert (set(group.world()), reason(group)) == ({"w0", "w1"}, "the connection to w2 broke; 2 members")
    assert restarts(group) == {"disruption": 1}


def test_a_peer_that_falls_silent_later_is_the_reason_in_the_end() -> None:
    group = group_of(3)
    group.cut("w2", noticed=False)
    for name in ("w0", "w1"):
        group.come(name, alive=True)
    group.advance(20)
    assert set(group.world()) == {"w0", "w1"}
    assert reason(group).startswith("w2 was silent for")
    assert restarts(group) == {"disruption": 1}


def test_the_failure_of_a_peer_explains_survivors_and_is_charged_alone() -> None:
    group = group_of(3)
    for name in ("w0", "w1"):
        group.come(name, alive=True)
    group.fail("w2", status=3)
    group.come_all()
    assert set(group.world()) == {"w0", "w1", "w2"}
    assert (restarts(group), reason(group)) == ({"user": 1}, "a worker of w2 ended with status 3; 3 members")


@pytest.mark.parametrize("says", ["failed", "ready"])
def test_a_member_whose_processes_end_at_the_barrier_has_failed_after_all(says: str) -> None:
    group = group_of(3)
    group.come("w0", alive=True)
    generation = group.agents["w0"].generation
    group.say("w0", Failed(generation=generation) if says == "failed" else Ready(after=generation, store="w0:1"))
    group.advance(1.1)
    group.come_all()
    assert (restarts(group), reason(group)) == ({"user": 1}, "a worker of w0 ended; 3 members")


def test_a_member_that_was_called_and_is_alive_is_no_sign_of_anything() -> None:
    group = group_of(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    group.start("w2")
    for name in ("w0", "w1"):
        group.come(name, alive=True, step=5)
    assert (reason(group), restarts(group)) == ("w2 joined; 3 members", {})


def test_its_trouble_counts_as_today() -> None:
    group = group_of(2)
    group.come("w0", alive=True, trouble="the store of generation 1 was lost")
    group.come_all()
    assert (reason(group), restarts(group)) == ("w0: the store of generation 1 was lost; 2 members", {"disruption": 1})


def test_a_finished_peer_is_not_disturbed_and_nobody_is_called() -> None:
    group = group_of(3)
    group.finish("w2")
    group.come("w0", alive=True)
    group.advance(5)
    assert not group.agents["w1"].view.reform
    assert restarts(group) == {}


def test_a_member_that_presents_itself_alive_at_the_barrier_is_no_failure_either() -> None:
    """Its connection broke together with its collective, so that a Join carries what Ready would."""
    group = group_of(3)
    group.cut("w0")
    agent = group.agents["w0"]
    agent.is_ready = agent.alive = True
    group.link("w0")
    group.advance(1.1)
    group.come_all()
    assert (restarts(group), reason(group)) == ({}, f"w0 {ALIVE}, and no peer was lost or failed; 3 members")


# --- the donor of the state


def donors_world(group: Group, steps: dict[str, int | None]) -> list[str | None]:
    """Let these members come with these steps, and return the next world by rank."""
    before = group.job.membership.generation
    for name, step in steps.items():
        group.come(name, alive=True, step=step)
    group.advance(1.2)
    world = group.job.membership.world
    assert world is not None
    assert world.generation == before + 1
    return list(world.by_rank)


def test_the_member_with_the_highest_step_becomes_rank_0() -> None:
    assert donors_world(group_of(3, can_reform=True), {"w0": 5, "w1": 6, "w2": 6}) == ["w1", "w0", "w2"]


def test_of_equal_steps_the_lowest_rank_gives_the_state_and_ranks_stay() -> None:
    assert donors_world(group_of(3, can_reform=True), {"w0": 6, "w1": 6, "w2": 5}) == ["w0", "w1", "w2"]


def test_a_member_without_a_complete_state_gives_none() -> None:
    assert donors_world(group_of(3, can_reform=True), {"w0": None, "w1": None, "w2": 5})[0] == "w2"


def test_without_steps_ranks_are_as_before() -> None:
    assert donors_world(group_of(3, can_reform=True), {"w0": None, "w1": None, "w2": None}) == ["w0", "w1", "w2"]


def test_while_one_holder_cannot_reform_all_restart_and_ranks_are_as_before() -> None:
    group = group_of(3, can_reform=True)
    group.agents["w0"].can_reform = False
    group.link("w0")
    assert donors_world(group, {"w0": None, "w1": 6, "w2": 7}) == ["w0", "w1", "w2"]


def test_a_newcomer_gives_no_state_however_high_its_step() -> None:
    group = group_of(2, can_reform=True)
    group.expect("w0", "w1", "w2")
    newcomer = group.start("w2", is_ready=False, can_reform=True)
    newcomer.is_ready, newcomer.step = True, 900
    group.link("w2")
    assert donors_world(group, {"w0": 5, "w1": 6}) == ["w1", "w0", "w2"]


def test_a_step_counts_for_one_barrier_only() -> None:
    """A member that gave the state once is not ranked by that step at the next barrier, where it holds no complete state."""
    group = group_of(2, can_reform=True)
    assert donors_world(group, {"w0": 5, "w1": 9}) == ["w1", "w0"]
    group.apply(Stepped(group.job.membership.generation, 10))
    assert donors_world(group, {"w0": 10, "w1": None}) == ["w0", "w1"]


def test_a_leaver_that_alone_has_the_newest_state_stays_for_one_more_world() -> None:
    group = group_of(3, can_reform=True, max=4)
    group.expect("w0", "w1", max=4, leaving=(Leaving(member="w2", by_s=30.0),))
    assert donors_world(group, {"w2": 8, "w0": 7, "w1": 7}) == ["w2", "w1", "w0"]
    group.apply(Stepped(group.job.membership.generation, 9))
    group.advance(0.1)
    assert donors_world(group, {"w0": 9, "w1": 9, "w2": 9}) == ["w1", "w0"], "then those that stay have it too, and keep their ranks"


def test_a_leaver_gives_no_state_while_a_member_that_stays_has_it() -> None:
    group = group_of(3, can_reform=True)
    group.expect("w1", "w2", leaving=(Leaving(member="w0", by_s=30.0),))
    assert donors_world(group, {"w0": 8, "w1": 8, "w2": 7}) == ["w1", "w2"]


def test_the_one_with_the_newest_state_has_a_place_where_the_sizes_take_fewer() -> None:
    group = group_of(4, can_reform=True, sizes=(2, 4))
    group.kill("w1")
    assert donors_world(group, {"w0": None, "w2": None, "w3": 4}) == ["w3", "w0"]


@given(steps=st.lists(st.none() | st.integers(0, 3), min_size=4, max_size=4), gone=st.sets(st.integers(0, 3), max_size=2))
def test_rank_0_holds_the_newest_complete_state_whenever_anybody_does(steps: list[int | None], gone: set[int]) -> None:
    group = group_of(4, can_reform=True)
    for index in gone:
        group.kill(f"w{index}")
    here = [index for index in range(4) if index not in gone]
    by_rank = donors_world(group, {f"w{index}": steps[index] for index in here})
    assert set(by_rank) == {f"w{index}" for index in here}
    held = [step for index in here if (step := steps[index]) is not None]
    if held:
        best = [index for index in here if steps[index] == max(held)]
        assert by_rank[0] == f"w{best[0]}"
