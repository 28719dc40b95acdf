"""benchmarks/cluster_mix.py: each job gets its work done, on no more GPUs than there are, and the policies differ as they should."""

from __future__ import annotations

import pytest

from benchmarks.cluster_mix import PLANS
from benchmarks.mix.cluster import BEGIN, Cluster, Plan, nodes
from benchmarks.mix.workload import Submitted, submitted

BY_NAME = {plan.name: plan for plan in PLANS}


def run(plan: Plan, queue: list[Submitted], *, machines: int = 2, gpus: int = 4, rescale_s: float = 12.0) -> Cluster:
    cluster = Cluster(plan, nodes(machines, gpus), rescale_s=rescale_s, seed=0)
    cluster.run(queue, most_hours=20)
    return cluster


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_every_job_ends_and_takes_no_less_than_its_most_workers_need(plan: Plan) -> None:
    queue = [Submitted(f"job-{n}", 60.0 * n, 1800.0, 0.03 if n % 2 else 0.4, 4) for n in range(4)]
    cluster = run(plan, queue)
    assert all(job.ended is not None for job in cluster.jobs)
    for job in cluster.jobs:
        assert job.ended is not None
        assert job.ended - BEGIN - job.of.at >= job.of.shortest_s - 10
    assert cluster.gpu_s <= (cluster.now - BEGIN) * 8


def test_a_job_alone_on_its_most_workers_takes_as_long_as_its_curve_says() -> None:
    one = Submitted("job", 0.0, 3600.0, 0.0, 4)
    (job,) = run(BY_NAME["fixed: maxReplicas"], [one]).jobs
    assert job.ended is not None
    assert job.ended - BEGIN == pytest.approx(900 + 12, abs=20)


def test_a_job_that_scales_well_ends_sooner_with_the_policy_and_one_that_does_not_costs_no_more() -> None:
    well, badly = Submitted("well", 0.0, 7200.0, 0.01, 8), Submitted("badly", 0.0, 7200.0, 0.9, 8)
    fixed, by_throughput = (run(BY_NAME[name], [well]) for name in ("fixed: minReplicas", "throughput, 50 %"))
    assert by_throughput.now - BEGIN < 0.6 * (fixed.now - BEGIN)
    held = run(BY_NAME["throughput, 50 %"], [badly])
    assert held.gpu_s < 1.3 * run(BY_NAME["fixed: minReplicas"], [badly]).gpu_s


def test_the_same_seed_draws_the_same_jobs() -> None:
    assert submitted(50, seed=3) == submitted(50, seed=3)
    assert submitted(50, seed=3) != submitted(50, seed=4)
