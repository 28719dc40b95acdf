"""An agent asks its workers for their paces, and passes on what is in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_worker.agent.change import LocalWorker
from elastic_worker.agent.paces import LONGEST_S, MOST_TOLD, LocalPaces
from elastic_worker.agent.throttling import Throttling
from elastic_worker.agent.worker_messages import BrokenRule

EVERY_S = 10.0
PARTS = {"compute_s": 0.2, "data_s": 0.01, "outside_s": 0.0, "wait_s": 0.1, "send_s": 0.03}


class Throttled(Throttling):
    """A container that was throttled in the given share of the periods."""

    def __init__(self, share: float = 0.0, limit: float = 0.0) -> None:
        self._share, self._limit = share, limit

    def share(self) -> float:
        return self._share

    def limit(self) -> float:
        return self._limit


class Agent:
    """An agent with some workers, in the world of round 4 and generation 7."""

    def __init__(self, workers: int = 1, *, throttling: Throttling | None = None) -> None:
        self.paces = LocalPaces(throttling or Throttled())
        self.workers = [LocalWorker(rank, 0, is_unit=False) for rank in range(workers)]
        self.now = 1000.0
        self.paces.begin(EVERY_S)

    def says(self, rank: int = 0, *, after_s: float = EVERY_S, round: int = 4, **fields: Any) -> dict[str, Any] | None:
        self.now += after_s
        message = {"t": "pace", "round": round, "steps": 50, **PARTS, **fields}
        size = len(self.workers)
        return self.paces.heard(self.workers[rank], message, place=(7, 4), local_size=size, now=self.now)


def test_the_server_is_told_the_pace_and_the_throttling_of_the_container() -> None:
    agent = Agent(throttling=Throttled(0.872, 1.5))
    pace = {"steps": 50, "compute_us": 200000, "data_us": 10000, "outside_us": 0, "wait_us": 100000, "send_us": 30000}
    assert agent.says() == {"t": "paces", "generation": 7, "workers": [pace], "throttled": 87, "milli_cpus": 1500}


def test_workers_are_asked_once_and_told_when_nobody_wants_to_know_any_more() -> None:
    agent = Agent()
    (worker,) = agent.workers
    assert agent.paces.lines(worker) == [{"t": "pace", "every_s": EVERY_S}]
    assert agent.paces.lines(worker) == []
    agent.paces.begin(EVERY_S)
    assert agent.paces.lines(worker) == []
    agent.paces.begin(0.0)
    assert agent.paces.lines(worker) == [{"t": "pace", "every_s": 0.0}]
    assert agent.says() is None, "what comes late is not passed on"


def test_a_worker_that_was_never_asked_hears_nothing() -> None:
    """Libraries of older releases do not know the question, and jobs that ignore stragglers ask nobody."""
    paces = LocalPaces(Throttled())
    assert paces.lines(LocalWorker(0, 0, is_unit=False)) == []


@pytest.mark.parametrize("every_s", [float("nan"), -1.0])
def test_a_window_without_sense_asks_nobody(every_s: float) -> None:
    paces = LocalPaces(Throttled())
    paces.begin(every_s)
    assert paces.lines(LocalWorker(0, 0, is_unit=False)) == []


def test_new_workers_are_asked_again_and_finished_ones_never() -> None:
    agent = Agent()
    agent.paces.lines(agent.workers[0])
    agent.paces.keep([])
    new = LocalWorker(0, 0, is_unit=False)
    assert agent.paces.lines(new) == [{"t": "pace", "every_s": EVERY_S}]
    done = LocalWorker(0, 0, is_unit=False)
    done.is_done = True
    assert agent.paces.lines(done) == []


def test_all_workers_are_told_together() -> None:
    agent = Agent(3)
    assert agent.says(2) is None
    assert agent.says(0, after_s=0.1) is None
    told = agent.says(1, after_s=0.1, compute_s=0.9)
    assert told is not None
    assert [worker["compute_us"] for worker in told["workers"]] == [200000, 900000, 200000]


def test_a_worker_that_says_nothing_does_not_keep_the_others() -> None:
    agent = Agent(3)
    agent.says(0)
    agent.says(2, after_s=0.1)
    told = agent.says(2)
    assert told is not None
    assert [worker.get("steps") for worker in told["workers"]] == [50, None, 50]


def test_a_worker_that_talks_too_much_is_told_twice_in_a_window_at_most() -> None:
    agent = Agent()
    told = [agent.says(after_s=0.1) for _ in range(200)]
    assert sum(one is not None for one in told) <= 5
    assert agent.says() is not None


def test_windows_of_another_round_and_empty_windows_are_not_passed_on() -> None:
    agent = Agent()
    assert agent.says(round=3) is None
    assert agent.says(steps=0) is None


@pytest.mark.parametrize("name", [*PARTS, "steps", "round"])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "-1", "1e400", "null", '"1"', "true", "[]", str(10**30)])
def test_a_number_that_is_none_costs_the_worker_its_connection(name: str, text: str) -> None:
    """JSON as Python reads it has NaN and Infinity. The server would close the agent's own connection because of them."""
    with pytest.raises(BrokenRule):
        Agent().says(**{name: json.loads(text)})


def test_a_missing_number_costs_the_worker_its_connection() -> None:
    agent = Agent()
    with pytest.raises(BrokenRule):
        agent.paces.heard(agent.workers[0], {"t": "pace", "round": 4, "steps": 1}, place=(7, 4), local_size=1, now=0.0)


def test_the_largest_numbers_are_within_the_bounds_of_the_server() -> None:
    agent = Agent(MOST_TOLD + 3, throttling=Throttled(1.0, 1e9))
    told = None
    for rank in range(MOST_TOLD + 3):
        told = agent.says(rank, after_s=0.1, steps=2**53, **dict.fromkeys(PARTS, LONGEST_S))
    assert told is not None
    assert len(told["workers"]) == MOST_TOLD
    assert told["workers"][0] == {"steps": 10**6, **{name.replace("_s", "_us"): 86400 * 10**6 for name in PARTS}}
    assert (told["throttled"], told["milli_cpus"]) == (100, 10**6)
