"""Check which jobs give room back to pods with more claim to it, for any reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_autoscale_sharing import GPU, key, node, pod

from elastic_training.autoscale.deciding.cluster import PodSeen, Room, Shape
from elastic_training.autoscale.deciding.giving import MOST_KINDS, Surplus, Waiting, given_back


def workers(name: str, count: int, *, node: str = "n", namespace: str = "a", priority: int = 0, gain: float = 0.5) -> Surplus:
    found = [pod(f"{name}-{i}", node=node, owner=name, priority=priority) for i in reversed(range(count))]
    return Surplus(key=key(name, namespace), uid=name, priority=priority, pods=found[:-1], held=count, gain=lambda _: gain)


def full(*surplus: Surplus, gpus: int) -> Room:
    running = [one for each in surplus for one in (*each.pods, pod("last", node="n", owner=each.uid))]
    return Room([node("n", gpus)], running)


def test_pods_of_higher_priority_get_room_from_the_jobs_that_lose_least() -> None:
    cheap, dear = workers("cheap", 3, gain=0.1), workers("dear", 3, gain=0.9)
    waiting = [Waiting(pod(f"inference-{i}", priority=10, since=0.0)) for i in range(2)]
    assert given_back(full(cheap, dear, gpus=6), waiting, [cheap, dear]) == {key("cheap"): (2, "a/inference-0")}


def test_the_workers_that_are_given_back_are_worth_least_together() -> None:
    """Two workers of one job counted more than one worker of another, however little they did."""
    idle = Surplus(key=key("idle"), uid="idle", priority=0, pods=[pod("i-2", node="n"), pod("i-1", node="n")], held=3, gain=lambda n: 0.1)
    two = Shape("two", {"gpu": 2.0}, {"spec": {}})
    busy = Surplus(key=key("busy"), uid="busy", priority=0, pods=[replace(pod("b-1", node="m"), shape=two)], held=2, gain=lambda n: 0.9)
    room = Room([node("n", 2), node("m", 2)], [*idle.pods, *busy.pods])
    waiting = replace(pod("waits", priority=1, since=0.0), shape=two)
    assert given_back(room, [Waiting(waiting)], [busy, idle]) == {key("idle"): (2, "a/waits")}


def test_the_lowest_class_gives_first_even_if_it_loses_most() -> None:
    low, high = workers("low", 3, gain=0.9), workers("high", 3, gain=0.1, priority=5)
    waiting = [Waiting(pod(f"inference-{i}", priority=10, since=0.0)) for i in range(3)]
    assert given_back(full(low, high, gpus=6), waiting, [high, low]) == {
        key("low"): (2, "a/inference-0"),
        key("high"): (1, "a/inference-2"),
    }


def test_a_namespace_that_lies_gives_down_to_what_others_keep() -> None:
    """The job that reported the most kept all its room, and the others gave all that they had."""
    liar, honest = workers("liar", 9, namespace="liar", gain=1.0), workers("honest", 5, namespace="honest", gain=0.6)
    waiting = [Waiting(pod(f"inference-{i}", priority=10, since=0.0)) for i in range(6)]
    found = given_back(full(liar, honest, gpus=14), waiting, [liar, honest])
    assert {job.name: count for job, (count, _) in found.items()} == {"liar": 5, "honest": 1}, "three are left to each"


spaces = st.lists(st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1)), min_size=1, max_size=3), min_size=1, max_size=5)


@given(spaces, st.integers(1, 30))
def test_no_report_takes_from_another_namespace_what_is_its_equal_share(held: list[list[tuple[int, float]]], wanted: int) -> None:
    """Each namespace keeps what it has above its minima, or at least the level down to which all of them give."""
    jobs = [
        workers(f"{space}-{i}", 1 + extra, namespace=f"{space}", gain=gain)
        for space, jobs in enumerate(held)
        for i, (extra, gain) in enumerate(jobs)
    ]
    has = {f"{space}": sum(extra for extra, _ in jobs) for space, jobs in enumerate(held)}
    total = sum(has.values())
    waiting = [Waiting(pod(f"inference-{i:02}", priority=10, since=0.0)) for i in range(wanted)]
    found = given_back(full(*jobs, gpus=total + len(jobs)), waiting, jobs)
    kept = {space: amount - sum(count for job, (count, _) in found.items() if job.namespace == space) for space, amount in has.items()}
    left = max(0, total - wanted)
    assert sum(kept.values()) == left
    level = max(level for level in range(total + 1) if sum(min(amount, level) for amount in has.values()) <= left)
    for space, amount in has.items():
        assert min(amount, level) <= kept[space] <= level + 1


FOUR = Shape("four", {"gpu": 4.0, "pods": 1.0}, {"spec": {}})


def test_jobs_give_together_if_none_makes_room_by_itself() -> None:
    """A pod of four GPUs got nothing from two sponges with two to spare each on one node."""
    one, other = workers("one", 3), workers("other", 3)
    waiting = [Waiting(replace(pod("wide", priority=9, since=0.0), shape=FOUR))]
    assert given_back(full(one, other, gpus=6), waiting, [one, other]) == {key("one"): (2, "a/wide"), key("other"): (2, "a/wide")}


def test_jobs_give_together_on_the_node_with_the_least_cost_and_none_of_them_in_vain() -> None:
    dear = [workers("dear-0", 3, gain=0.9), workers("dear-1", 3, gain=0.9)]
    cheap = [workers("cheap-0", 3, node="m", gain=0.2), workers("cheap-1", 3, node="m", gain=0.3)]
    # This job is the cheapest, and on that node too. But together with four of the others its room is not needed.
    small = Surplus(key=key("small"), uid="small", priority=0, pods=[tiny(pod("small-1", node="m"))], held=2, gain=lambda _: 0.1)
    jobs = [*dear, *cheap, small]
    room = Room(
        [node("n", 6), node("m", 7)], [one for job in jobs for one in job.pods] + [pod(f"last-{i}", node=on) for i in "01" for on in "nm"]
    )
    waiting = [Waiting(replace(pod("wide", priority=9, since=0.0), shape=FOUR))]
    room.take(Shape("half", {"gpu": 0.5}, {"spec": {}}))  # a quarter stays free on m
    assert given_back(room, waiting, jobs) == {key("cheap-0"): (2, "a/wide"), key("cheap-1"): (2, "a/wide")}


def tiny(seen: PodSeen) -> PodSeen:
    return replace(seen, shape=Shape("tiny", {"gpu": 0.25}, {"spec": {}}))


def test_pods_of_the_same_class_get_room_only_for_their_jobs_minimum() -> None:
    sponge = workers("sponge", 3)
    waiting = pod("new-0", owner="new", since=0.0)
    assert given_back(full(sponge, gpus=3), [Waiting(waiting)], [sponge]) == {}
    assert given_back(full(sponge, gpus=3), [Waiting(waiting, is_needed=True)], [sponge]) == {key("sponge"): (1, "a/new-0")}


def test_no_job_gives_back_room_that_would_not_help() -> None:
    sponge = workers("sponge", 3)
    huge = PodSeen(key=("a", "huge"), node="", shape=Shape("huge", {"gpu": 99.0}, {"spec": {}}), priority=10, unschedulable_since=0.0)
    assert given_back(full(sponge, gpus=3), [Waiting(huge)], [sponge]) == {}


def test_a_pod_that_finds_free_room_takes_it_from_nobody() -> None:
    sponge = workers("sponge", 2)
    assert given_back(full(sponge, gpus=3), [Waiting(pod("one", priority=9, since=0.0))], [sponge]) == {}


def test_a_flood_of_pods_that_fit_nowhere_costs_others_no_room_and_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 pods of a deployment with a wrong node selector held up a round for minutes: each was tried against each worker of each job."""
    sponge = workers("sponge", 101)
    flood = [Waiting(strange(pod(f"flood-{n}", priority=9, since=0.0), n)) for n in range(1000)]
    same = [Waiting(strange(pod(f"same-{n}", priority=9, since=0.0), 0)) for n in range(1000)]
    wanted = Waiting(replace(pod("wanted", priority=1, since=0.0), key=("b", "wanted")))
    tried = 0

    def counted(self: Room, shape: Shape, pods: Iterable[PodSeen]) -> int | None:
        nonlocal tried
        tried += 1
        return count_to_free(self, shape, pods)

    count_to_free = Room.count_to_free
    monkeypatch.setattr(Room, "count_to_free", counted)
    assert given_back(full(sponge, gpus=101), [*flood, *same, wanted], [sponge]) == {key("sponge"): (1, "b/wanted")}
    assert tried <= MOST_KINDS + 2


@pytest.mark.parametrize("shape", [GPU, FOUR])
def test_many_waiting_pods_of_one_kind_cost_little_more_than_one(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    jobs = [workers(f"job-{n}", 9, node=f"n{n // 2}") for n in range(40)]
    room = Room([node(f"n{n}", 18) for n in range(20)], [one for job in jobs for one in (*job.pods, pod("last", node=job.pods[0].node))])
    looks = 0

    def counted(self: Room, shape: Shape, pods: Iterable[PodSeen]) -> int | None:
        nonlocal looks
        looks += 1
        return count_to_free(self, shape, pods)

    count_to_free = Room.count_to_free
    monkeypatch.setattr(Room, "count_to_free", counted)
    waiting = [Waiting(replace(pod(f"inference-{n:02}", priority=9, since=0.0), shape=shape)) for n in range(80)]
    found = given_back(room, waiting, jobs)
    assert sum(count for count, _ in found.values()) == 80 * shape.amounts["gpu"]
    assert looks <= len(jobs) + 3 * len(waiting)


def strange(seen: PodSeen, number: int) -> PodSeen:
    return replace(seen, shape=Shape(f"strange-{number}", {"gpu": 1.0}, {"spec": {"nodeSelector": {"none": str(number)}}}))


@given(st.lists(st.tuples(st.sampled_from("nm"), st.integers(0, 3)), max_size=12), st.integers(0, 6))
def test_as_few_workers_go_as_make_room(held: list[tuple[str, int]], wanted: int) -> None:
    room = Room([node("n", 0), node("m", 0)], ())
    pods = [replace(pod(str(i), node=on), shape=Shape(f"g{gpus}", {"gpu": float(gpus)}, {"spec": {}})) for i, (on, gpus) in enumerate(held)]
    enough = [n for n in range(1, len(pods) + 1) if any(sum(g for o, g in held[:n] if o == on) >= wanted for on, _ in held[:n])]
    assert room.count_to_free(Shape("wanted", {"gpu": float(wanted)}, {"spec": {}}), pods) == (enough[0] if enough else None)
