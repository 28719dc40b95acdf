"""How many workers of an elastic job a drain, or the scheduler for another pod, is to leave."""

from __future__ import annotations

import pytest
from job_builders import OURS, Cluster, elastic_job


@pytest.mark.parametrize(("workers", "least"), [(3, 2), (2, 2), (5, 1)])
def test_the_last_workers_stay_and_neither_launcher_nor_store_is_counted(workers: int, least: int) -> None:
    cluster = Cluster(elastic_job(workers, least=least), settings=OURS)
    cluster.settle()
    spec = cluster.owned["PodDisruptionBudget", "train"].raw["spec"]
    assert spec["minAvailable"] == least
    assert spec["selector"]["matchLabels"]["training.kubeflow.org/replica-type"] == "worker"
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
