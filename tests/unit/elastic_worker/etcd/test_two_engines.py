"""The engine decides alike at the server and at the members of an etcd, from the same history.

`docs/decisions/0008` lists the differences of the two transports, which stay.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from two_engines import Pair, Said

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow

NAMES = ("w0", "w1", "w2", "w3", "w4")
THREE = Said(("w0", "w1", "w2"))
some = st.sampled_from(NAMES)


@st.composite
def words(draw: st.DrawFn) -> Said:
    """Draw what a controller may say."""
    members = tuple(sorted(draw(st.sets(some, min_size=1, max_size=4))))
    leaving = draw(st.dictionaries(some, st.tuples(st.sampled_from(["plan", "disruption"]), st.booleans()), max_size=2))
    sizes = draw(st.sampled_from([(), (), (1, 2, 4), (2, 3)]))
    return Said(
        members,
        pending=members[:1] if draw(st.booleans()) else (),
        leaving=tuple((name, *leaving[name]) for name in sorted(leaving)),
        newcomers=tuple(sorted(draw(st.sets(some, max_size=2)))),
        sizes=sizes,
        min=max(draw(st.integers(1, 2)), min(sizes, default=1)),
        max_restarts=draw(st.sampled_from([None, None, 1, 3])),
        without_progress=draw(st.sampled_from([None, None, 2])),
        hang_s=draw(st.sampled_from([None, None, 60.0])),
    )


happenings = st.tuples(st.sampled_from(["start", "start", "kill", "leave", "fail", "trouble", "finish"]), some) | st.tuples(
    st.just("step"), st.integers(1, 9)
)
histories = st.lists(st.lists(happenings, min_size=1, max_size=3) | words(), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=st.just(THREE) | words(), here=st.just({"w0", "w1", "w2"}) | st.sets(some), history=histories)
def test_both_engines_come_to_the_same(first: Said, here: set[str], history: list[Any]) -> None:
    with pair_of(*sorted(here), said=first) as pair:
        for batch in history:
            pair.tell(batch)
            pair.rest()
            assert pair.differences() == {}
            if pair.at_server().is_closed:
                return


@contextmanager
def pair_of(*names: str, said: Said = THREE) -> Iterator[Pair]:
    """Make both engines with these members, at rest."""
    pair = Pair(said)
    try:
        pair.start(*names)
        pair.rest()
        assert pair.differences() == {}
        yield pair
    finally:
        pair.close()


def after(pair: Pair, *batches: Any) -> Any:
    """Return what both engines have come to after these batches."""
    for batch in batches:
        pair.tell(batch)
        pair.rest()
        assert pair.differences() == {}
    return pair.at_server()


# --- each of these was a difference


def test_a_member_that_restarted_is_no_survivor() -> None:
    """The server took a new run of rank 0 for the old one: it got rank 0 again, before survivors with the state."""
    with pair_of("w0", "w1", "w2") as pair:
        rest = after(pair, [("start", "w0")])
        assert rest.ranks["w0"] != 0
        assert rest.restarts == {"disruption": 1}


def test_the_state_is_not_with_a_member_that_restarted() -> None:
    """Both engines counted it among the holders by its name: a leaver that alone had the state was not kept for one more world."""
    with pair_of("w0", "w1", said=Said(("w0", "w1"))) as pair:
        assert after(pair, [("step", 3)], [("start", "w1")]).holders == {"w0"}


def test_a_member_that_had_to_leave_and_restarted_left_as_planned() -> None:
    """The server took a lost connection of such a member for the planned end, and its new run for a disruption."""
    with pair_of("w0", "w1") as pair:
        leaving = Said(("w0", "w1"), leaving=(("w1", "plan", True),))
        assert after(pair, leaving, [("start", "w1")]).restarts == {"plan": 1}


def test_a_failure_on_a_node_that_is_reclaimed_is_charged_to_nobody() -> None:
    """In an etcd, it was charged to the user: the controller may speak of the eviction before the worker's end is judged."""
    with pair_of("w0", "w1") as pair:
        leaving = Said(("w0", "w1"), leaving=(("w1", "disruption", True),), max_restarts=0)
        rest = after(pair, leaving, [("fail", "w1")])
        assert (rest.restarts, rest.is_closed, rest.cause) == ({"disruption": 1}, False, "disruption")


def test_a_failure_is_charged_although_a_newcomer_joins_at_once() -> None:
    """In an etcd the newcomer began a planned change while the peers of the failed worker had their second, and hid the failure."""
    with pair_of("w0", "w1", said=Said(("w0", "w1", "w2"), pending=("w2",))) as pair:
        pair.expect(THREE)
        assert after(pair, [("fail", "w0"), ("start", "w2")]).restarts == {"user": 1}


def test_the_reason_for_a_lost_member_that_had_to_leave_is_the_announced_one() -> None:
    with pair_of("w0", "w1", "w2") as pair:
        leaving = Said(("w0", "w1", "w2"), leaving=(("w2", "plan", True),))
        assert after(pair, leaving, [("kill", "w2")]).cause == "plan"
        assert pair.in_etcd().cause == "plan"


def test_a_smaller_budget_ends_a_job_at_its_next_restart_and_not_at_a_planned_change() -> None:
    """In an etcd, the job ended as soon as a member joined."""
    with pair_of("w0", "w1", said=Said(("w0", "w1"))) as pair:
        after(pair, [("fail", "w0")], [("fail", "w1")])
        rest = after(pair, Said(("w0", "w1", "w2"), max_restarts=1), [("start", "w2")])
        assert (len(rest.ranks), rest.is_closed) == (3, False)
        assert after(pair, [("fail", "w2")]).is_closed


def test_trouble_of_a_member_that_must_leave_is_a_disruption() -> None:
    """In an etcd it counted as planned, though the store that was lost is not the member's own leaving."""
    with pair_of("w0", "w1") as pair:
        leaving = Said(("w0", "w1"), leaving=(("w1", "plan", True),))
        assert after(pair, leaving, [("trouble", "w1")]).restarts == {"disruption": 1}


def test_a_hang_is_charged_once_by_both() -> None:
    with pair_of("w0", "w1", said=Said(("w0", "w1"), hang_s=60.0)) as pair:
        assert after(pair, [("step", 4)], []).restarts == {"hang": 1}


# --- these differences stay, for the reasons given


@pytest.mark.parametrize(
    ("batches", "server", "etcd"),
    [
        pytest.param([[("come", "w0")]], {"user": 1}, {}, id="a member that comes uncalled without a word"),
        pytest.param([[("fail", "w0"), ("die", "w0")]], {"user": 1}, {"disruption": 1}, id="a failed member whose agent dies at once"),
    ],
)
def test_facts_that_only_a_record_tells_are_not_known_in_an_etcd(batches: list[Any], server: dict[str, int], etcd: dict[str, int]) -> None:
    """In an etcd nobody calls the members of a broken world, so each may have come because of what it saw.

    And what a member's record says goes with its agent. Agents report a failure before they come, and errors are in the job's favour.
    """
    with pair_of("w0", "w1", "w2") as pair:
        for batch in batches:
            pair.tell(batch)
            pair.rest()
        assert (pair.at_server().restarts, pair.in_etcd().restarts) == (server, etcd)
        assert set(pair.at_server().ranks) == set(pair.in_etcd().ranks)


def test_a_notice_that_was_taken_back_before_the_next_world_forms_is_unknown_in_an_etcd() -> None:
    """The server judges a loss when it happens; in an etcd the member that seals the next world judges it by what is expected then."""
    with pair_of("w0", "w1", said=Said(("w0", "w1"), min=2)) as pair:
        after(pair, Said(("w0", "w1"), min=2, leaving=(("w1", "plan", True),)), [("kill", "w1")])
        taken_back = Said(("w0", "w1", "w2"), min=2)
        pair.expect(taken_back, as_said=True)
        pair.tell([("start", "w2")])
        pair.rest()
        assert (pair.at_server().restarts, pair.in_etcd().restarts) == ({"plan": 1}, {"disruption": 1})
        assert pair.at_server().ranks == pair.in_etcd().ranks
