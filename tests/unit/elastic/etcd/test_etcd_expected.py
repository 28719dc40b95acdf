"""Test the record that tells the agents in an etcd what the controller expects of their job."""

from elastic.etcd.observed import expected_of
from elastic.etcd.records import Leaving
from elastic.membership import bounds, wire


def test_the_record_has_the_members_that_must_or_may_have_to_leave_and_by_when() -> None:
    doomed = wire.LeaveOrder(member="w0", cause="disruption", by_s=12.5)
    prepared = wire.LeaveOrder(member="w1", cause="disruption", when_replaced=True)
    record = expected_of(wire.Expectation(members=("w2",), newcomers=("w2",), leaving=(doomed, prepared), max=4, state_s=3.0))
    assert record.leaving == (
        Leaving(member="w0", cause="disruption", by_s=12.5),
        Leaving(member="w1", cause="disruption", when_replaced=True),
    )
    assert (record.members, record.newcomers, record.state_s) == (("w2",), ("w2",), 3.0)


def test_limits_that_agents_can_hold_are_theirs_and_others_the_controllers() -> None:
    own = wire.Budget(max_restarts=3, without_progress=2, hang_s=1e12)
    record = expected_of(wire.Expectation(budget=own, restarts={"user": 1, "hang": 2, "plan": 9}))
    assert (record.max_restarts, record.without_progress, record.hang_s) == (3, 2, bounds.MOST_SECONDS)
    assert record.restarts == {"user": 1, "hang": 2}
    for budget in (wire.Budget(max_restarts=3, window_s=60), wire.Budget(max_restarts=3, by_cause={"hang": 1})):
        assert expected_of(wire.Expectation(budget=budget)).max_restarts is None
