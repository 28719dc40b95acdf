"""The book of restarts: what merging it keeps whatever is told twice, late or out of order, by law."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from elastic.membership.wire import Restart
from elastic_training.rendezvous.engine.restart_log import RestartLog, merged, settled, unknown_to

PODS = ("a", "b", "c")
TRUE_CAUSES = ("user", "disruption", "collateral", "outOfMemory")


def loss(generation: int, pod: str, cause: str = "disruption", **fields: bool) -> Restart:
    return Restart(id=f"{generation}-s/{pod}", generation=generation, pod=pod, cause=cause, **fields)


@st.composite
def reports(draw: st.DrawFn) -> list[Restart]:
    """Draw reports of the things that happened: each as a guess, as known, or both, any number of times."""
    told = []
    for generation, pod in draw(st.sets(st.tuples(st.integers(1, 4), st.sampled_from(PODS)), max_size=6)):
        cause = draw(st.sampled_from(TRUE_CAUSES))
        ways = [loss(generation, pod, lost=True, unsure=True), loss(generation, pod, cause, lost=True), loss(generation, pod, cause)]
        told += draw(st.lists(st.sampled_from(ways), min_size=1, max_size=4))
    return draw(st.permutations(told))


@given(reports())
def test_each_restart_counts_once_however_often_it_is_told(told: list[Restart]) -> None:
    book = merged(RestartLog(), told)
    assert sum(book.counts.values()) == len({entry.id for entry in told})
    assert merged(book, told) == book
    assert unknown_to(book, told) == ()


@given(reports(), st.data())
def test_the_order_of_telling_does_not_matter(told: list[Restart], data: st.DataObject) -> None:
    other = data.draw(st.permutations(told))
    one, two = merged(RestartLog(), told), merged(RestartLog(), other)
    assert one.counts == two.counts
    assert set(one.unsettled) == set(two.unsettled)


@given(reports(), reports())
def test_the_sum_never_falls_and_what_is_certain_never_changes(first: list[Restart], second: list[Restart]) -> None:
    book = merged(RestartLog(), first)
    later = merged(book, second)
    assert sum(later.counts.values()) >= sum(book.counts.values())
    known = {entry.id: entry for entry in later.unsettled}
    assert all(known[entry.id].cause == entry.cause for entry in book.unsettled if not entry.unsure)


@given(reports(), st.integers(0, 5), st.sets(st.sampled_from(PODS)))
def test_a_settled_restart_stays_counted_and_is_not_counted_again(told: list[Restart], generation: int, pods: set[str]) -> None:
    book = merged(RestartLog(), told)
    rest = settled(book, generation=generation, pods=pods)
    assert rest.counts == book.counts
    again = merged(rest, told)
    assert sum(again.counts.values()) == sum(book.counts.values())
    old = [entry for entry in rest.unsettled if entry.generation < generation]
    assert len(old) <= len(pods)


def test_a_guess_that_proves_to_be_the_users_is_counted_there_and_no_longer_here() -> None:
    guess = loss(3, "a", lost=True, unsure=True)
    for told in permutations([guess, loss(3, "a", "user"), guess]):
        assert merged(RestartLog(counts={"disruption": 2}), told).counts == {"disruption": 2, "user": 1}


def test_the_newest_loss_of_a_pod_that_may_still_be_heard_of_stays_open() -> None:
    book = merged(RestartLog(), [loss(n, "a", lost=True, unsure=True) for n in (1, 2, 3)])
    assert [entry.generation for entry in settled(book, generation=9, pods={"a"}).unsettled] == [3]
    assert settled(book, generation=9, pods=()).unsettled == ()
