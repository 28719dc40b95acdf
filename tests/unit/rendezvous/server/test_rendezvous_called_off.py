"""A round whose reason goes away while its members are already on their way to the barrier."""

from rendezvous_group import group_of

from elastic.membership.wire import Budget


def test_a_member_that_comes_for_a_round_nobody_needs_any_more_is_not_charged() -> None:
    group = group_of(2, min=1, max=3, budget=Budget(max_restarts=0))
    group.expect("w0", "w1", "w2", min=1, max=3, budget=Budget(max_restarts=0))
    group.start("w2")  # everybody is called, because w2 joins
    group.expect("w0", "w1", min=1, max=3, budget=Budget(max_restarts=0))
    group.leave("w2")  # and w2 goes again before anybody came
    group.come_all()
    group.advance(1.0)
    assert group.job.accounting.restarts.get("user", 0) == 0
    assert group.job.accounting.closed == ""
    assert sorted(group.world()) == ["w0", "w1"]


def test_a_leaver_that_is_spared_while_all_come_to_the_barrier_stays_a_member() -> None:
    group = group_of(3, min=1, max=3, budget=Budget(max_restarts=0))
    group.expect("w0", "w1", min=1, max=3, budget=Budget(max_restarts=0))  # w2 is told to go, so all are called
    group.expect("w0", "w1", "w2", min=1, max=3, budget=Budget(max_restarts=0))
    group.come_all()
    group.advance(1.0)
    assert group.job.accounting.restarts.get("user", 0) == 0
    assert sorted(group.world()) == ["w0", "w1", "w2"]
