"""Check how the rendezvous engine forms worlds of living processes: the first world, planned changes, and the donor of the state."""

from hypothesis import given
from hypothesis import strategies as st
from living_group import generation, is_restarting, living, newcomer, reason, restarts, told
from rendezvous_group import Group, group_of

from elastic.membership.wire import LeaveOrder
from elastic_training.rendezvous.engine.messages.in_place import Change, Stage, Unable

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


# --- a planned change


def test_a_newcomer_starts_next_to_the_world_and_all_stop_after_the_same_step() -> None:
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
    group.expect("w0", "w1", max=3, leaving=(LeaveOrder(member="w2", by_s=30.0),))
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert (told(group, "w0", "w1"), group.agents["w2"].view.reform) == ({Stage.RUN}, "w2 is leaving (plan)")


def test_a_leaver_that_alone_has_the_newest_state_stays_for_one_more_world() -> None:
    group = living(3, max=4)
    group.fail("w0")
    group.agents["w2"].trained = 8
    group.expect("w0", "w1", max=4, leaving=(LeaveOrder(member="w2", by_s=30.0),))
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


def test_the_lowest_rank_with_the_newest_step_gives_the_state_and_ranks_stay() -> None:
    group = living(3)
    assert changed(group, {"w0": 6, "w1": 6, "w2": 5}) == ["w0", "w1", "w2"]
    change = group.agents["w2"].view.change
    assert change is not None
    assert (change.step, change.donors) == (6, (0, 1))


def test_a_member_without_a_complete_state_gives_none() -> None:
    assert changed(living(3), {"w0": None, "w1": None, "w2": 5})[0] == "w2"


def test_a_leaver_gives_no_state_while_a_member_that_stays_has_it() -> None:
    group = living(3)
    group.expect("w1", "w2", leaving=(LeaveOrder(member="w0", by_s=30.0),))
    for name, step in (("w0", 8), ("w1", 8), ("w2", 7)):
        group.agents[name].trained = step
    group.fail("w0")
    group.obey_all()
    assert set(group.world()) == {"w1", "w2"}


def test_the_member_with_the_newest_state_has_a_place_if_the_sizes_take_fewer() -> None:
    group = living(4, sizes=(2, 4))
    group.kill("w1")
    assert changed(group, {"w0": None, "w2": None, "w3": 4}) == ["w3", "w0"]


@given(steps=st.lists(st.none() | st.integers(0, 3), min_size=4, max_size=4).filter(any))
def test_rank_0_holds_the_newest_complete_state(steps: list[int | None]) -> None:
    by_rank = changed(living(4), {f"w{index}": step for index, step in enumerate(steps)})
    newest = max(step for step in steps if step is not None)
    assert by_rank[0] == f"w{steps.index(newest)}"
