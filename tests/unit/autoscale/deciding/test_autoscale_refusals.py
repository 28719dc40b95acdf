"""Pods that the API server refuses, as a quota does: the job goes on with those that it has, and others get the room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from autoscale_cluster import SPONGE, node, pod, running, state
from autoscale_jobs import NOON, signals

from elastic.api.scaling import PolicyName, ScalingPolicy
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.jobs import JobState, Outcome
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.deciding.signals import Memory
from elastic_training.autoscale.deciding.trials import REFUSED_S

QUOTA = "exceeded quota: gpus"


def refused(name: str, replicas: int, **more: object) -> JobState:
    one = state(name, replicas, **more)  # type: ignore[arg-type]
    return replace(one, seen=replace(one.seen, refused=QUOTA))


def decided(states: list[JobState], cpus: int, made: dict[str, int]) -> dict[str, Outcome]:
    pods = [pod(f"{one.seen.key.name}-{i}", on="n", owner=one.seen.uid, index=i) for one in states for i in range(made[one.seen.key.name])]
    found = decide_all(states, [node("n", cpus)], pods, setting=Setting(), now=NOON, monotonic=1.0)
    return {key.name: outcome for key, outcome in found.items()}


def test_workers_that_a_quota_refuses_take_no_room_from_other_jobs() -> None:
    hog, other = refused("hog", 100, most=10_000, **SPONGE), state("other", 1, rates={1: 100.0})
    found = decided([hog, other], 40, {"hog": 2, "other": 1})
    assert found["other"].decision.count == 2


def test_a_new_worker_without_a_node_keeps_its_room_next_to_those_that_are_refused() -> None:
    hog, other = refused("hog", 100, most=10_000, **SPONGE), state("other", 1, rates={1: 100.0})
    pods = [*running(other), pod("hog-0", on="n", owner=hog.seen.uid, index=0), pod("hog-1", owner=hog.seen.uid, index=1)]
    found = decide_all([hog, other], [node("n", 3)], pods, setting=Setting(), now=NOON, monotonic=1.0)
    assert found[other.seen.key].decision.count == 1


@pytest.mark.parametrize("policy", [PolicyName.THROUGHPUT, PolicyName.CAPACITY])
def test_the_reason_of_a_waiting_job_names_the_quota(policy: PolicyName) -> None:
    decision = decided([refused("one", 8, policy=policy)], 40, {"one": 2})["one"].decision
    assert decision.count == 8
    assert decision.reason.endswith(f"; 6 of its workers are not made: {QUOTA}")


@dataclass
class UnderQuota:
    """A sponge in a large cluster, looked at each five seconds; so many of its pods are admitted."""

    quota: int
    replicas: int = 2
    least: int = 1
    now: float = NOON
    memory: Memory = field(default_factory=Memory)
    changes: list[tuple[float, int, str]] = field(default_factory=list)

    def run(self, hours: float) -> UnderQuota:
        end = self.now + hours * 3600
        while self.now < end:
            self.now += 5
            unmade = max(0, self.replicas - self.quota)
            seen = signals(
                policy=ScalingPolicy(policy=PolicyName.CAPACITY),
                least=self.least,
                most=100,
                memory=self.memory,
                room=100 - self.replicas + unmade,
                working=self.replicas - unmade,
                refused=QUOTA if unmade else "",
                unmade=unmade,
            )
            decision = decide(seen, self.replicas, self.now)
            self.memory = decision.memory
            if decision.count != self.replicas:
                self.changes.append((self.now - NOON, decision.count, decision.reason))
            self.replicas = decision.count
        return self


@pytest.mark.slow
def test_a_job_goes_on_with_the_workers_that_its_quota_admits_and_tries_again_ever_later() -> None:
    job = UnderQuota(quota=4).run(24)
    (_, first, _), (at, second, reason) = job.changes[:2]
    assert (first, second) == (100, 4)
    assert REFUSED_S <= at - job.changes[0][0] <= REFUSED_S + 10
    assert reason == f"96 of its workers are not made: {QUOTA}"
    assert {count for _, count, _ in job.changes} == {4, 100}
    assert len(job.changes) <= 14
    assert len(job.run(72).changes) <= 14 + 2 * 4
    job.quota = 10
    assert job.run(26).replicas == 10


def test_a_refusal_that_passes_within_two_minutes_changes_nothing() -> None:
    job = UnderQuota(quota=4).run(REFUSED_S / 3600)
    job.quota = 100
    assert [count for _, count, _ in job.run(1).changes] == [100]


def test_a_job_that_needs_the_workers_that_are_refused_waits_for_them_and_says_so() -> None:
    job = UnderQuota(quota=1, least=2, replicas=2)
    job.memory = Memory(changed_at=NOON)
    assert job.run(1).changes == []
    seen = signals(least=2, working=1, refused=QUOTA, unmade=1)
    assert decide(seen, 2, NOON).reason.endswith(f"; 1 of its workers are not made: {QUOTA}")
