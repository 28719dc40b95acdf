"""Workers above minReplicas say to autoscalers of nodes that they may go; the last ones that are needed do not."""

from dataclasses import replace

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, job, replica, tainted
from msgspec import structs

from elastic.api.job import Job
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import DELETION_COST, SAFE_TO_EVICT, WorldSeen

SPARE = {SAFE_TO_EVICT: "true", DELETION_COST: "-100"}


def running(one: Job, settings: Settings = OURS) -> Cluster:
    cluster = Cluster(one, settings=settings, lingering=True)
    cluster.settle()
    cluster.run_all()
    for index, name in enumerate(cluster.names()):
        cluster.pods[name] = replace(cluster.pods[name], node=f"node-{index}")
        cluster.nodes[f"node-{index}"] = tainted(f"node-{index}")
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running", size=len(cluster.pods))
    cluster.settle()
    return cluster


def marks(cluster: Cluster) -> dict[str, dict[str, str]]:
    return {name: dict(one.marks) for name, one in sorted(cluster.pods.items())}


def test_workers_above_the_minimum_may_be_evicted_and_that_costs_no_write() -> None:
    cluster = running(elastic_job(3, least=2))
    assert marks(cluster) == {"train-worker-0": {}, "train-worker-1": {}, "train-worker-2": SPARE}
    assert cluster.marked == [], "they were made so"
    assert cluster.round().actions == (cluster.told[-1],), "at rest only the word to the server, which is not sent twice"


def test_a_worker_that_is_needed_after_a_loss_is_no_spare_and_another_write_follows_only_a_change() -> None:
    cluster = running(elastic_job(3, least=2))
    del cluster.pods["train-worker-0"]
    cluster.settle()
    assert cluster.marked == [], "not while the replacement starts"
    cluster.run_all()
    cluster.settle()
    kept, spare = sorted(cluster.pods)[:2], sorted(cluster.pods)[2]
    assert marks(cluster) == {kept[0]: {}, kept[1]: {}, spare: SPARE}
    written = len(cluster.marked)
    cluster.settle()
    assert len(cluster.marked) == written


def test_the_users_template_is_left_alone() -> None:
    spec = replica(2)
    spec["template"]["metadata"] = {"annotations": {SAFE_TO_EVICT: "false"}}
    cluster = running(job(Worker=spec, elasticPolicy={"minReplicas": 1, "maxReplicas": 3}))
    assert marks(cluster) == {"train-worker-0": {SAFE_TO_EVICT: "false"}, "train-worker-1": {SAFE_TO_EVICT: "false", DELETION_COST: "-100"}}
    assert cluster.marked == []


@pytest.mark.parametrize("one", [job(Worker=replica(3)), elastic_job(3, least=3)])
def test_a_job_that_needs_all_of_its_workers_marks_none(one: Job) -> None:
    assert not any(marks(running(one)).values())


def test_a_surplus_worker_stays_while_evictions_leave_fewer_than_the_minimum() -> None:
    """From 3 to 2, and before the third was gone another is evicted: the third stays in its place."""
    cluster = running(elastic_job(3, least=2))
    cluster.job = structs.replace(elastic_job(2, least=2), status=cluster.job.status)
    cluster.settle()
    assert [leave.member for leave in cluster.told[-1].leaving] == ["train-worker-2"]
    cluster.pods["train-worker-0"] = replace(
        cluster.pods["train-worker-0"], is_deleting=True, disruption="EvictionByEvictionAPI", gone_by=NOW
    )
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0", "train-worker-1"}), phase="running", size=2)
    cluster.settle()
    assert not cluster.pods["train-worker-2"].is_deleting
    assert cluster.told[-1].members == ("train-worker-1", "train-worker-2")
    del cluster.pods["train-worker-0"]
    cluster.settle()
    assert cluster.names() == ["train-worker-1", "train-worker-2"]
