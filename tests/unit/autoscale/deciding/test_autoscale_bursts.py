"""Room comes and goes by what others do: a job takes it again each time after the same short pause.

Changes by the job's own wishes are damped all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from autoscale_jobs import NOON, measured, signals

from elastic.api.scaling import PolicyName, ScalingPolicy
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.signals import Memory

MINUTE_S, DAY_S = 60.0, 86400.0
pytestmark = pytest.mark.slow
LINEAR = {n: 100.0 * n for n in range(1, 5)}
FLAT_FROM_3 = LINEAR | {3: 205.0, 4: 210.0}
World = Callable[[float, int], dict[str, Any]]
"""Answers of the cluster at a time, in seconds from the start, to a job of this many workers."""


@dataclass
class Job:
    """It may have four workers, and is decided about each ten seconds."""

    world: World
    policy: PolicyName = PolicyName.CAPACITY
    replicas: int = 4
    memory: Memory = field(default_factory=lambda: Memory(sizes=measured(LINEAR)))
    sizes: list[tuple[float, int]] = field(default_factory=list)

    def run(self, seconds: float) -> Job:
        for tick in range(int(seconds / 10)):
            at = 10.0 * tick
            known = {"rates": LINEAR, "working": self.replicas, "rescale_s": 2.0, **self.world(at, self.replicas)}
            memory = Memory(**{name: getattr(self.memory, name) for name in Memory.__slots__} | {"sizes": measured(known["rates"])})
            decision = decide(signals(most=4, policy=ScalingPolicy(policy=self.policy), memory=memory, **known), self.replicas, NOON + at)
            self.memory = decision.memory
            if decision.count != self.replicas:
                self.sizes.append((at, decision.count))
            self.replicas = decision.count
        return self


def gives_room(in_burst_s: float, replicas: int) -> dict[str, Any]:
    return {"give_back": max(0, replicas - 3), "give_back_to": "default/inference"}


def is_preempted(in_burst_s: float, replicas: int) -> dict[str, Any]:
    """Take the fourth worker's room, as the scheduler does; its replacement finds none."""
    lacks = max(0, replicas - 3)
    return {"lacks": lacks, "stuck": lacks if in_burst_s >= 40 else 0}


def bursts(takes: World) -> World:
    """Let somebody else need one of four GPUs in the last five minutes of twenty."""

    def world(at: float, replicas: int) -> dict[str, Any]:
        in_burst_s = at % (20 * MINUTE_S) - 15 * MINUTE_S
        return {"room": 4 - replicas} if in_burst_s < 0 else {"room": 0, **takes(in_burst_s, replicas)}

    return world


@pytest.mark.parametrize("takes", [gives_room, is_preempted])
@pytest.mark.parametrize("policy", [PolicyName.CAPACITY, PolicyName.THROUGHPUT])
def test_room_that_returns_is_taken_as_soon_after_a_day_of_bursts_as_after_the_first(takes: World, policy: PolicyName) -> None:
    """The way back counted as a turn of the job's own: it took 20 s at first, and after an hour it did not come before the next burst."""
    job = Job(bursts(takes), policy).run(DAY_S + MINUTE_S)
    assert [count for _, count in job.sizes] == [3, 4] * 72
    assert max(at % (20 * MINUTE_S) for at, count in job.sizes if count == 4) <= 60
    assert job.memory.reversals == 0


@pytest.mark.parametrize("lost", ["stuck", "unmade"])
def test_a_number_that_was_submitted_and_found_no_room_is_no_growth_of_the_jobs_own(lost: str) -> None:
    """It is submitted with four to a cluster with room for one, and room for all comes after five minutes."""

    def world(at: float, replicas: int) -> dict[str, Any]:
        lacks = max(0, replicas - 1) if at < 300 else 0
        return {"rescale_s": 30.0, "lacks": lacks, lost: lacks if at >= 40 else 0, "room": 3 if at >= 300 else 0}

    job = Job(world).run(1200)
    assert [count for _, count in job.sizes] == [1, 4]
    (given_up, _), (back, _) = job.sizes
    assert given_up < 300 <= back < 320, "a change costs 30 s: a turn of its own would wait for ten minutes"


def test_growth_that_never_finds_room_is_tried_ever_more_rarely() -> None:
    def world(at: float, replicas: int) -> dict[str, Any]:
        """Offer room that no worker ever gets, because of a rule of placement that is not looked at here."""
        return {"room": 1, "lacks": replicas - 3, "stuck": replicas - 3}

    job = Job(world, replicas=3).run(DAY_S)
    assert {count for _, count in job.sizes} == {3, 4}
    assert len(job.sizes) <= 20
    assert len([at for at, _ in job.sizes if at > DAY_S / 2]) <= 2


def test_a_job_that_changes_its_mind_is_damped_even_if_others_take_room_between() -> None:
    taken = bursts(gives_room)

    def world(at: float, replicas: int) -> dict[str, Any]:
        """Make the third and fourth worker worth much and little, ten minutes each."""
        return {"rates": LINEAR if at // (10 * MINUTE_S) % 2 else FLAT_FROM_3, **taken(at, replicas)}

    job = Job(world, PolicyName.THROUGHPUT).run(DAY_S)
    shrunk = [(at, after) for (_, before), (at, after) in itertools.pairwise([(0.0, 4), *job.sizes]) if after < before]
    own = [at for at, _ in shrunk if "give_back" not in taken(at, 4)]
    assert 3 <= len(own) <= 12
    assert len([at for at in own if at > DAY_S / 2]) <= 2
