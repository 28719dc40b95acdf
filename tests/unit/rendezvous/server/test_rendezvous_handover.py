"""Members must leave, or may have to.

Training's state passes on before the last one that has it goes, and one that may have to go is exchanged in one change.
"""

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import LeaveOrder
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.server.active_job import ActiveJob


def doomed(*names: str, by_s: float = 120) -> tuple[LeaveOrder, ...]:
    return tuple(LeaveOrder(member=name, by_s=by_s, cause="disruption") for name in names)


def prepared(*names: str) -> tuple[LeaveOrder, ...]:
    return tuple(LeaveOrder(member=name, by_s=30, cause="disruption", when_replaced=True) for name in names)


def steps(group: Group, step: int) -> None:
    group.apply(Stepped(group.job.membership.generation, step))


def trained(count: int, **more: object) -> Group:
    group = group_of(count, **more)
    steps(group, 7)
    return group


def sealed(group: Group) -> list[list[str | None]]:
    return [sorted(map(str, by_rank)) for by_rank in group.sealed.values()]


def test_the_last_member_with_the_state_takes_part_until_its_replacement_made_a_step() -> None:
    group = trained(1)
    group.expect("w1", pending=("w1",), leaving=doomed("w0"), max=2)
    assert not group.agents["w0"].view.reform, "it trains on while its replacement starts"
    group.start("w1")
    group.come_all()
    assert group.world() == {"w0": 0, "w1": 1}, "rank 0 has the state"
    group.advance(40)
    assert group.world() == {"w0": 0, "w1": 1}, "training reports steps, so time says nothing"
    steps(group, 8)
    group.come_all()
    assert group.world() == {"w1": 0}


def test_without_reported_steps_time_says_that_the_state_has_passed_on() -> None:
    group = group_of(1)
    group.expect("w1", leaving=doomed("w0"), max=2, state_s=20)
    group.start("w1")
    group.come_all()
    group.advance(19)
    assert group.world() == {"w0": 0, "w1": 1}
    group.advance(6)
    group.come_all()
    assert group.world() == {"w1": 0}


def test_if_only_one_size_is_allowed_the_state_passes_on_in_the_place_of_one_newcomer() -> None:
    group = trained(2, min=2, sizes=(2,))
    group.expect("w2", "w3", min=2, sizes=(2,), leaving=doomed("w0", "w1"), max=3)
    group.start("w2")
    group.come_all()
    group.advance(6)
    group.come_all()
    group.start("w3")
    group.come_all()
    group.advance(6)
    group.come_all()
    assert "w0" in group.world()
    assert len(group.world()) == 2
    steps(group, 8)
    group.come_all()
    group.advance(6)
    group.come_all()
    assert group.world().keys() == {"w2", "w3"}


def test_a_member_that_must_leave_goes_at_once_if_another_has_the_state() -> None:
    group = trained(2)
    group.expect("w0", "w2", pending=("w2",), leaving=doomed("w1"), max=3)
    group.come_all()
    assert group.world() == {"w0": 0}


def test_a_newcomer_without_a_step_does_not_count_as_having_the_state() -> None:
    """The old member had to leave the moment the new one had joined: the world of the new one alone began at step 0."""
    group = trained(1)
    group.expect("w0", "w1", max=2)
    group.start("w1")
    group.come_all()
    group.expect("w1", leaving=doomed("w0"), max=2)
    group.advance(5)
    assert group.world() == {"w0": 0, "w1": 1}
    steps(group, 8)
    group.come_all()
    assert group.world() == {"w1": 0}


def test_one_that_may_have_to_leave_is_exchanged_in_one_change() -> None:
    group = trained(2, min=2)
    group.expect("w0", "w2", pending=("w2",), min=2, leaving=prepared("w1"), max=3)
    group.advance(300)
    assert not group.agents["w1"].view.reform, "it trains on for as long as its replacement takes"
    group.start("w2")
    group.come_all()
    assert group.world().keys() == {"w0", "w2"}
    assert len(group.sealed) == 2


def test_one_that_may_have_to_leave_keeps_its_place_above_the_minimum_too() -> None:
    group = trained(3)
    group.expect("w0", "w1", "w3", pending=("w3",), leaving=prepared("w2"), max=4)
    group.advance(60)
    assert len(group.world()) == 3
    assert len(group.sealed) == 1


def test_all_that_may_have_to_leave_are_exchanged_and_the_state_passes_on() -> None:
    group = trained(2)
    group.expect("w2", "w3", pending=("w2", "w3"), leaving=prepared("w0", "w1"), max=3)
    group.advance(60)
    assert group.world().keys() == {"w0", "w1"}
    group.start("w2")
    group.start("w3")
    group.come_all()
    assert group.world().keys() == {"w2", "w3", "w0"}
    steps(group, 8)
    group.come_all()
    assert group.world().keys() == {"w2", "w3"}


def test_a_notice_that_is_taken_back_leaves_everything_as_it_was() -> None:
    group = trained(2, min=2)
    for leaving in (prepared("w1"), doomed("w1")):
        group.expect("w0", "w2", pending=("w2",), min=2, leaving=leaving, max=3)
        group.advance(20)
        group.expect("w0", "w1", min=2)
        group.advance(20)
    assert len(group.sealed) == 1
    assert not group.agents["w1"].view.reform


@pytest.mark.parametrize(("leaving", "later"), [(doomed("w0", by_s=100), 0.0), (prepared("w0"), None)])
def test_a_report_is_answered_with_the_true_time_and_a_mere_warning_only_for_a_while(
    leaving: tuple[LeaveOrder, ...], later: float | None
) -> None:
    """A script saves in answer to it: with a warning that is never taken back it would save at every step."""
    group = trained(1)
    group.expect("w1", pending=("w1",), leaving=leaving, max=2)
    first = ActiveJob(group.job).answer("w0", group.now)
    assert first.checkpoint_s == leaving[0].by_s
    assert not first.stop
    assert ActiveJob(group.job).answer("w0", group.now + 101).checkpoint_s == later
