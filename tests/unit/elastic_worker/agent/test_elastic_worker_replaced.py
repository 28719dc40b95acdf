"""The siblings of a lost worker wait for a new process, or all workers of the agent start again."""

from __future__ import annotations

import pytest
from test_elastic_worker_change import changing, say, training, view


def test_the_siblings_of_a_lost_worker_wait_for_a_new_process_and_give_it_the_state() -> None:
    change, (lost, sibling) = training()
    change.lost(lost, now=0.0)
    assert change.can_replace(0)
    change.replace(0, now=0.1)
    change.pass_time(5.0)
    assert change.take_up() == []
    assert change.introduction()[0] == {"workers": 2}, "a new server must not take the member for one that cannot change worlds"
    change.follow(view(2, "abort", generation=4))
    say(change, sibling, "at", round=2, step=57)
    assert change.take_up() == []
    newcomer = change.hello({"t": "hello", "pid": 8, "local_rank": 0, "step": None})
    assert change.lines(newcomer) == [{"t": "change", "round": 2, "phase": "abort"}]
    say(change, newcomer, "at", round=2, step=None)
    assert change.take_up() == [{"t": "ready", "round": 2, "step": 57}]
    change.follow(view(2, "form", generation=5, step=57, donors=[0]))
    assert [(line["rank"], line["donors"]) for line in change.lines(newcomer)] == [(0, [1])]


@pytest.mark.parametrize(
    "case", ["with others", "alone in its pod", "unit", "other rank", "sibling lost", "sibling done", "changes", "twice", "plain"]
)
def test_all_workers_start_again_if_the_siblings_should_not_wait(case: str) -> None:
    sizes = {"with others": (2, 2), "alone in its pod": (1, 1)}
    workers, size = sizes.get(case, (2, 1))
    change, said = changing(workers) if case == "plain" else training(workers, size=size, is_unit=case == "unit")
    if case == "sibling lost":
        change.lost(said[1], now=0.0)
    elif case == "sibling done":
        change.heard(said[1], {"t": "done"}, now=0.0)
    elif case == "changes":
        change.follow(view(2, "hold", generation=4))
    elif case == "twice":
        change.replace(0, now=0.0)
        change.hello({"t": "hello", "pid": 8, "local_rank": 0, "step": None})
    change.lost(said[0], now=0.0)
    assert not change.can_replace(7 if case == "other rank" else 0)


def test_a_new_process_that_does_not_come_makes_its_member_unable() -> None:
    change, (lost, _) = training()
    change.lost(lost, now=0.0)
    change.replace(0, now=0.0)
    change.pass_time(29.9)
    assert change.take_up() == []
    change.pass_time(30.0)
    assert change.take_up() == [{"t": "unable", "words": "the new process of local rank 0 has not come within 30 s"}]
