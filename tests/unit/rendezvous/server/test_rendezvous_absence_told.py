"""The controller hears which expected members fell silent, and since when, until they come back or are no longer expected."""

from datetime import UTC, datetime, timedelta

from rendezvous_group import Group, group_of

from elastic.membership import wire
from elastic.membership.world_changes import applied, changes
from elastic_training.controller.acting.link import _world
from elastic_training.rendezvous.engine.views import summary


def silent(group: Group) -> list[str]:
    return [member.name for member in summary(group.job).silent]


def stopped() -> Group:
    """Stop all processes of w1 of two members: its connection stays open, and nothing comes over it."""
    group = group_of(2, min=1)
    group.cut("w1", noticed=False)
    group.advance(25)
    group.come_all()
    group.advance(5)
    assert set(group.world()) == {"w0"}
    return group


def test_a_silent_member_is_told_until_it_comes_back() -> None:
    group = stopped()
    (told,) = summary(group.job).silent
    assert told.name == "w1"
    assert told.ago_s >= group.limits.silence_s
    group.start("w1")
    assert silent(group) == []


def test_a_silent_member_that_is_no_longer_expected_is_forgotten() -> None:
    group = stopped()
    group.expect("w0", min=1)
    assert silent(group) == []


def test_the_time_of_a_silent_member_stays_the_same_at_the_controller() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    told = wire.WorldReport(job="uid", generation=2, phase="running", silent=(wire.SilentMember(name="w1", ago_s=19.0),))
    later = wire.WorldReport(job="uid", generation=2, phase="running", silent=(wire.SilentMember(name="w1", ago_s=30.0),))
    assert list(changes(told, later, after=1)) == [], "ages are no news"
    (line,) = changes(None, told, after=0)
    assert applied(None, line) == told
    first = _world(told, None, now=now)
    assert first.silent == {"w1": now - timedelta(seconds=19)}
    assert _world(later, first, now=now + timedelta(seconds=11.4)).silent == first.silent
