"""Check which jobs get free room, and which give some back, for any reports."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from elastic.kube.placement import Candidate
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen, Room, Shape
from elastic_training.autoscale.deciding.curve import Curve, speedup
from elastic_training.autoscale.deciding.sharing import Claim, granted
from elastic_training.autoscale.figures import JobName

GPU = Shape("gpu", {"gpu": 1.0, "pods": 1.0}, {"spec": {}})


def node(name: str, gpus: int, *, taints: tuple[dict[str, str], ...] = ()) -> NodeSeen:
    return NodeSeen(Candidate(name=name, labels={}, taints=taints, offers={}, unschedulable=False, pods=()), {"gpu": gpus, "pods": 110.0})


def key(name: str, namespace: str = "a") -> JobName:
    return JobName("PyTorchJob", namespace, name)


def claim(
    name: str,
    more: int = 4,
    *,
    namespace: str = "a",
    gain: Callable[[int], float] = lambda n: speedup(Curve((), least=1, now=None), n, 1),
    replicas: int = 1,
    least: int = 1,
    priority: int = 0,
    held: int = 0,
    shape: Shape = GPU,
    is_whole: bool = False,
) -> Claim:
    return Claim(
        key=key(name, namespace),
        shape=shape,
        replicas=replicas,
        more=more,
        least=least,
        gain=gain,
        priority=priority,
        held=held,
        is_whole=is_whole,
    )


def pod(name: str, *, node: str = "", owner: str = "", priority: int = 0, since: float | None = None) -> PodSeen:
    return PodSeen(key=("a", name), node=node, shape=GPU, owner=owner, priority=priority, unschedulable_since=since, is_worker=owner != "")


def test_room_goes_to_the_job_whose_next_worker_adds_the_most() -> None:
    steep, flat = claim("steep", gain=lambda n: 0.9), claim("flat", gain=lambda n: 0.2)
    assert granted(Room([node("n", 3)], ()), [flat, steep]) == {key("steep"): 3, key("flat"): 0}


EIGHT = Shape("eight", {"gpu": 8.0, "pods": 1.0}, {"spec": {}})


def test_room_goes_to_the_job_that_gains_most_for_its_part_of_the_cluster() -> None:
    large, small = claim("large", 1, gain=lambda n: 0.9, shape=EIGHT), claim("small", 8, gain=lambda n: 0.85)
    assert granted(Room([node("n", 8)], ()), [large, small]) == {key("large"): 0, key("small"): 8}


def test_a_job_that_waits_for_its_minimum_comes_first() -> None:
    waiting = claim("waiting", 2, least=3, gain=lambda n: 0.01)
    assert granted(Room([node("n", 2)], ()), [claim("rich", gain=lambda n: 1.0), waiting])[key("waiting")] == 2


def test_a_higher_class_is_served_before_a_lower_one() -> None:
    assert granted(Room([node("n", 2)], ()), [claim("low", gain=lambda n: 1.0), claim("high", gain=lambda n: 0.1, priority=5)]) == {
        key("high"): 2,
        key("low"): 0,
    }


def test_a_tenant_that_lies_gets_no_more_than_its_namespaces_share() -> None:
    liar = [claim(f"liar{i}", 10, namespace="liar", gain=lambda n: 1e9) for i in range(5)]
    honest = claim("honest", 10, namespace="honest", gain=lambda n: 0.6)
    found = granted(Room([node("n", 8)], ()), [*liar, honest])
    assert found[key("honest", "honest")] == 4
    assert sum(found[one.key] for one in liar) == 4


def test_room_that_small_namespaces_leave_is_shared_by_those_that_want_more() -> None:
    """All of it went to the best report: of 40 GPUs an honest namespace got 5 and a lying one 29."""
    small = [claim(f"small{i}", 1, namespace=f"small{i}", gain=lambda n: 0.5) for i in range(6)]
    honest = claim("honest", 100, namespace="honest", gain=lambda n: 0.6)
    liars = [claim(f"liar{i}", 100, namespace="liar", gain=lambda n: 1e9) for i in range(3)]
    found = granted(Room([node("n", 40)], ()), [*small, honest, *liars])
    assert [found[one.key] for one in small] == [1] * 6
    assert (found[honest.key], sum(found[one.key] for one in liars)) == (17, 17)
    found = granted(Room([node("n", 12)], ()), [small[0], honest, *liars])
    assert (found[honest.key], sum(found[one.key] for one in liars)) == (5, 6), "the last one goes where it is said to add the most"


def test_room_of_jobs_that_want_no_more_counts_as_their_namespaces_share() -> None:
    """A namespace with many small jobs got another share for its jobs that still grew."""
    full = claim("full", 0, namespace="one", held=4)
    found = granted(
        Room([node("n", 4)], ()), [full, claim("more", 4, namespace="one"), claim("new", 4, namespace="two", gain=lambda n: 0.1)]
    )
    assert found == {full.key: 0, key("more", "one"): 0, key("new", "two"): 4}


def test_namespaces_take_turns_also_if_their_jobs_wait_for_their_minimum() -> None:
    liar = [claim(f"liar{i}", 1, namespace="liar", gain=lambda n: 1e9, replicas=0, held=0) for i in range(8)]
    honest = [claim(f"honest{i}", 1, namespace="honest", gain=lambda n: 0.1, replicas=0) for i in range(2)]
    found = granted(Room([node("n", 4)], ()), [*liar, *honest])
    assert sum(found[one.key] for one in honest) == 2


def test_each_priority_class_is_shared_by_itself() -> None:
    low, high = claim("low", 0, namespace="one", held=6), claim("high", 4, namespace="one", priority=5)
    other = claim("other", 4, namespace="two", priority=5)
    found = granted(Room([node("n", 4)], ()), [low, high, other])
    assert (found[high.key], found[other.key]) == (2, 2)


jobs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.floats(0, 1e12)), min_size=1, max_size=3)


@given(st.lists(jobs, max_size=6), st.integers(0, 60))
def test_no_report_takes_from_another_namespace_what_is_its_equal_share(spaces: list[list[tuple[int, int, float]]], free: int) -> None:
    """Each namespace gets what it wants, or at least the level to which the room fills all of them."""
    claims = [
        claim(f"job{i}", more, namespace=f"space{n}", held=held, gain=lambda n, gain=gain: gain)  # type: ignore[misc]
        for n, jobs in enumerate(spaces)
        for i, (more, held, gain) in enumerate(jobs)
    ]
    found = granted(Room([node("n", free)], ()), claims)
    held = {one.key.namespace: 0 for one in claims}
    wanted, got = dict(held), dict(held)
    for one in claims:
        held[one.key.namespace] += one.held
        wanted[one.key.namespace] += one.more
        got[one.key.namespace] += found[one.key]

    def filled(level: int) -> dict[str, int]:
        return {space: min(wanted[space], max(0, level - held[space])) for space in held}

    level = max((level for level in range(200) if sum(filled(level).values()) <= free), default=0)
    for space, least in filled(level).items():
        assert least <= got[space] <= least + 1
    assert sum(got.values()) == min(free, sum(wanted.values()))


def test_a_trial_gets_only_room_that_nobody_else_wants_for_any_reports() -> None:
    liars = [claim(f"liar-{n}", 2, namespace="b", gain=lambda n: 1.0, priority=9, is_whole=True) for n in range(3)]
    honest = claim("honest", 3, gain=lambda n: 0.1)
    alone = granted(Room([node("n", 4)], ()), [honest])
    found = granted(Room([node("n", 4)], ()), [*liars, honest])
    assert found[key("honest")] == alone[key("honest")] == 3
    assert sum(found.values()) == 3, "the last GPU is too little for a trial of two workers"


def test_a_trial_is_granted_whole_and_one_that_was_not_takes_nothing_from_the_next() -> None:
    large, small = claim("large", 4, is_whole=True), claim("small", 3, held=1, is_whole=True)
    assert granted(Room([node("n", 2), node("m", 1)], ()), [small, large]) == {key("large"): 0, key("small"): 3}
    both = granted(Room([node("n", 4), node("m", 3)], ()), [small, large])
    assert both == {key("large"): 4, key("small"): 3}


def test_room_that_others_do_not_want_is_not_left_unused() -> None:
    found = granted(Room([node("n", 8)], ()), [claim("big", 7, namespace="one"), claim("small", 1, namespace="two")])
    assert found == {key("big", "one"): 7, key("small", "two"): 1}


def test_room_of_a_namespace_above_its_minimum_counts_as_its_share() -> None:
    held = claim("held", 4, namespace="one", held=4, gain=lambda n: 1.0)
    found = granted(Room([node("n", 4)], ()), [held, claim("new", 4, namespace="two", gain=lambda n: 0.1)])
    assert found == {held.key: 0, key("new", "two"): 4}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.floats(0, 1e12), st.integers(0, 2)), max_size=8),
    st.lists(st.integers(0, 4), max_size=4),
)
def test_never_more_is_granted_than_wanted_or_free(wants: list[tuple[str, int, float, int]], gpus: list[int]) -> None:
    claims = [
        claim(f"j{i}", more, namespace=space, gain=lambda n, gain=gain: gain, priority=priority)  # type: ignore[misc]
        for i, (space, more, gain, priority) in enumerate(wants)
    ]
    found = granted(Room([node(f"n{i}", count) for i, count in enumerate(gpus)], ()), claims)
    assert all(0 <= found[one.key] <= one.more for one in claims)
    assert sum(found.values()) == min(sum(gpus), sum(one.more for one in claims)), "no room is left while a claim is open"


def test_a_taint_that_is_not_tolerated_is_no_room() -> None:
    tainted = node("n", 4, taints=({"key": "reserved", "effect": "NoSchedule"},))
    assert granted(Room([tainted], ()), [claim("one")]) == {key("one"): 0}
