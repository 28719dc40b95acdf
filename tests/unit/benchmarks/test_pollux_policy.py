"""benchmarks/pollux.py: the autoscaler as a policy of Pollux's simulator, without the simulator."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.pollux import GPUS, NODES, OURS, Allocations, Elastic, costing, elastic_policy, samples_a_second


def rounds(ours: Elastic, jobs: dict[str, int], count: int, *, step_s: float = 60.0) -> list[Allocations]:
    """Run rounds with jobs that scale without loss up to these numbers of workers, and return their allocations."""
    found: list[Allocations] = [{}]
    for number in range(count):
        for name, most in jobs.items():
            workers = len(found[-1].get(name, []))
            ours.heard(name, replicas=1, most=most, rate=100.0 * workers if workers else None)
        found.append(ours.round(set(jobs), now=number * step_s))
    return found[1:]


@pytest.mark.parametrize("name", OURS)
def test_no_node_has_more_workers_than_gpus_and_no_job_more_than_it_may(name: str) -> None:
    jobs = {f"job-{number}": 1 + number % 16 for number in range(30)}
    for given in rounds(Elastic(OURS[name], rescale_s=30.0), jobs, 40):
        assert all(count <= GPUS for count in Counter(node for places in given.values() for node in places).values())
        assert all(len(places) <= jobs[job] for job, places in given.items())


def test_a_job_alone_grows_to_its_most_and_its_workers_stay_where_they_are() -> None:
    found = [given["one"] for given in rounds(Elastic(OURS["throughput"], rescale_s=30.0), {"one": 8}, 60)]
    assert [len(found[0]), len(found[-1])] == [1, 8]
    for before, after in itertools.pairwise(found):
        assert not Counter(before) - Counter(after), "a worker moved while the job grew"
    assert len(set(found[-1])) == 2, "two nodes have room for eight workers"


def test_a_job_that_ended_gives_its_gpus_back() -> None:
    ours = Elastic(OURS["capacity"], rescale_s=30.0)
    full = rounds(ours, {"one": NODES * GPUS}, 20)[-1]
    assert len(full["one"]) == NODES * GPUS
    ours.heard("two", replicas=4, most=4, rate=None)
    assert set(ours.round({"two"}, now=1300.0)) == {"two"}


def test_the_simulator_is_given_the_jobs_that_it_has_asked_about() -> None:
    job = SimpleNamespace(name="one", placement=(), rescale_time=0)
    policy = elastic_policy(object, Elastic(OURS["throughput"], rescale_s=30.0), {"one": 2})
    policy.cluster = SimpleNamespace(jobs=[job, SimpleNamespace(name="later")], current_time=60.0)
    assert policy.optimize({"one": SimpleNamespace(max_replicas=4)}, range(NODES), {}, None) == ({"one": [0, 0]}, NODES)


def trained(**changes: Any) -> Any:
    application = SimpleNamespace(get_throughput=lambda placement, size: (0.5, 0.1))
    values = {"placement": (4, 0, 2), "rescale_time": 0, "atomic_bsz": 32, "accum_steps": 0, "application": application}
    return SimpleNamespace(**{**values, **changes})


def test_the_throughput_is_that_of_the_steps_with_what_is_accumulated() -> None:
    assert samples_a_second(trained()) == pytest.approx(6 * 32 / 0.5)
    assert samples_a_second(trained(accum_steps=1)) == pytest.approx(2 * 6 * 32 / 0.9)
    assert samples_a_second(trained(rescale_time=3)) is None
    assert samples_a_second(trained(placement=())) is None


def test_a_change_costs_what_was_asked_for_and_a_stop_costs_nothing() -> None:
    class Theirs:
        rescale_time = 0.0

        def reallocate(self, placement: list[int]) -> None:
            self.rescale_time = 30 if placement else 0

    job = costing(Theirs, 5.0)()
    job.reallocate([])
    assert job.rescale_time == 0
    job.reallocate([1])
    assert job.rescale_time == 5.0
