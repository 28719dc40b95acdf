"""Check how many pods of an elastic job a drain, or the scheduler's preemption, must leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from job_builders import OURS, Cluster, elastic_job, job, replica, tainted
from test_plan_mpi_hosts import elastic_mpi, running

from elastic.api.job import Job
from elastic.api.names import REPLICA_TYPE

LAUNCHER = "train-launcher"


def least(cluster: Cluster) -> dict[str, int]:
    """Return the minimum of each budget by its name. Check that a budget selects the pods of one replica type."""
    budgets = {name: owned.raw["spec"] for (kind, name), owned in cluster.owned.items() if kind == "PodDisruptionBudget"}
    for name, spec in budgets.items():
        assert spec["selector"]["matchLabels"][REPLICA_TYPE] == ("launcher" if name == LAUNCHER else "worker")
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    return {name: spec["minAvailable"] for name, spec in budgets.items()}


def settled(one: Job) -> Cluster:
    cluster = Cluster(one, settings=OURS)
    cluster.settle()
    return cluster


@pytest.mark.parametrize(("workers", "few"), [(3, 2), (2, 2), (5, 1)])
def test_the_last_workers_stay_and_the_store_is_not_counted(workers: int, few: int) -> None:
    assert least(settled(elastic_job(workers, least=few))) == {"train": few}


def test_a_launcher_goes_after_all_workers_that_may_go() -> None:
    """The scheduler takes the youngest of equal pods first. Without a budget this was the launcher, which often waits for its workers."""
    assert least(settled(elastic_mpi(3, least=2))) == {"train": 2, LAUNCHER: 1}


def test_a_launcher_that_restarts_with_its_workers_has_no_budget() -> None:
    kinds: dict[str, Any] = {"Launcher": replica(kind="MPIJob"), "Worker": replica(2, kind="MPIJob", command=False)}
    assert least(settled(job("MPIJob", **kinds))) == {}


@pytest.mark.parametrize(
    ("taints", "is_cordoned", "is_guarded"),
    [
        ((), True, False),
        (("karpenter.sh/disrupted",), False, False),
        (("aws-node-termination-handler/rebalance-recommendation",), False, True),
    ],
    ids=["cordoned", "must leave", "may have to leave"],
)
def test_a_launchers_budget_holds_up_no_drain_of_its_node(taints: tuple[str, ...], is_cordoned: bool, is_guarded: bool) -> None:
    """A drain asks for an eviction again and again until the budget lets it through. Once the node stays, the budget is back."""
    cluster = running(elastic_mpi())
    cluster.pods[LAUNCHER] = replace(cluster.pods[LAUNCHER], node="n")
    cluster.nodes = {"n": tainted("n", *taints, is_cordoned=is_cordoned)}
    cluster.settle()
    assert (LAUNCHER in least(cluster)) == is_guarded
    cluster.nodes = {"n": tainted("n")}
    cluster.settle()
    assert least(cluster) == {"train": 1, LAUNCHER: 1}
