"""A node falls silent while its pods are being deleted: nobody will say that they have gone, and the job goes on all the same."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builders import NOW, Cluster, deleted, elastic_job, job, reasons, replica, tainted

from elastic.api.job import Job
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Delete
from elastic_training.controller.deciding.lifecycle.lost_nodes import PATIENCE_S
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.snapshot import Node, PodPhase, pod_from

GONE_BY = NOW + timedelta(seconds=30)
UNREACHABLE = tainted("silent", "node.kubernetes.io/unreachable")


def stuck(one: Job | None = None, *, node: Node | None = UNREACHABLE) -> Cluster:
    """Return a static job whose worker 1 is being deleted on a node that does not answer."""
    cluster = Cluster(one or job(Master=replica(), Worker=replica(2)), lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], node="silent", is_deleting=True, gone_by=GONE_BY)
    cluster.nodes = {"silent": node} if node is not None else {}
    return cluster


def planned(cluster: Cluster, seconds: float) -> list[Delete]:
    """Return the forced deletions this long after the end of the grace."""
    cluster.now = GONE_BY + timedelta(seconds=seconds)
    return [action for action in plan(cluster.job, cluster.look()).actions if isinstance(action, Delete) and action.grace_s == 0]


@pytest.mark.parametrize("node", [UNREACHABLE, tainted("silent", "node.kubernetes.io/out-of-service"), None])
def test_a_pod_on_a_lost_node_is_given_up_a_minute_after_its_grace(node: Node | None) -> None:
    cluster = stuck(node=node)
    assert cluster.settle()[-1].look_again_at == GONE_BY + timedelta(seconds=PATIENCE_S)
    assert planned(cluster, PATIENCE_S - 1) == []
    uid = cluster.pods["train-worker-1"].uid
    assert planned(cluster, PATIENCE_S) == [Delete(PODS, "train-worker-1", uid, grace_s=0)]


def test_the_place_of_a_pod_that_was_given_up_is_filled_again_and_the_user_hears_why() -> None:
    cluster = stuck()
    cluster.now = GONE_BY + timedelta(seconds=PATIENCE_S)
    planned = cluster.round()
    told = next(news for news in planned.news if news.reason == "PodGivenUp")
    assert told.message == "PyTorchJob train force-deletes pod train-worker-1: its node silent is lost, and its grace period ended 60 s ago"
    del cluster.pods["train-worker-1"]
    plans = cluster.settle()
    assert cluster.pods["train-worker-1"].phase is PodPhase.PENDING
    assert not {"PyTorchJobRestarting", "PodGivenUp"} & set(reasons(plans))


@pytest.mark.parametrize("node", [Node("silent"), tainted("silent", "aws-node-termination-handler/spot-itn", is_cordoned=True)])
def test_a_pod_that_its_node_is_slow_to_end_is_waited_for(node: Node) -> None:
    cluster = stuck(node=node)
    assert planned(cluster, 3600) == []
    assert cluster.names() == ["train-master-0", "train-worker-0", "train-worker-1"]


def test_a_controller_that_cannot_see_nodes_gives_no_pod_up() -> None:
    cluster = stuck(node=None)
    look = cluster.look
    cluster.look = lambda: replace(look(), sees_nodes=False)  # type: ignore[method-assign]
    assert planned(cluster, 3600) == []


def test_a_pod_that_a_finalizer_keeps_is_removed_by_force_once() -> None:
    cluster = stuck()
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_forced=True)
    assert planned(cluster, 3600) == []
    metadata = {"name": "p", "deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": 0}
    assert pod_from({"metadata": metadata}).is_forced


@pytest.mark.parametrize("state", ["suspended", "over"])
def test_a_job_that_no_longer_runs_gets_rid_of_its_pods_as_well(state: str) -> None:
    """Kueue waits for pods to be gone before it admits another job."""
    one = job(Master=replica(), Worker=replica(2), policy={"cleanPodPolicy": "All"})
    cluster = stuck(one)
    if state == "over":
        cluster.set("train-master-0", PodPhase.SUCCEEDED, code=0)
    else:
        cluster.job = job(Master=replica(), Worker=replica(2), policy={"suspend": True}, status=cluster.job.status)
    cluster.round()
    assert [action.name for action in planned(cluster, PATIENCE_S)] == ["train-worker-1"]


def test_a_pod_that_an_earlier_job_of_the_same_name_left_on_a_lost_node_gives_its_name_free() -> None:
    cluster = stuck()
    before = replace(cluster.pods.pop("train-worker-1"), uid="uid-before")
    look = cluster.look
    cluster.look = lambda: replace(look(), left_behind=(before,))  # type: ignore[method-assign]
    assert planned(cluster, PATIENCE_S) == [Delete(PODS, "train-worker-1", "uid-before", grace_s=0)]


def test_the_store_pod_of_a_lost_node_is_given_up_so_that_another_can_be_made() -> None:
    cluster = Cluster(elastic_job(2, elastic={"rdzvBackend": "c10d"}))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    name = ("Pod", "train-rdzv")
    raw = cluster.owned[name].raw
    metadata = {**raw["metadata"], "deletionTimestamp": GONE_BY.isoformat()}
    cluster.owned[name] = replace(cluster.owned[name], raw={**raw, "metadata": metadata, "spec": {**raw["spec"], "nodeName": "silent"}})
    cluster.nodes = {"silent": UNREACHABLE}
    cluster.settle()
    assert [action.name for action in planned(cluster, PATIENCE_S)] == ["train-rdzv"]


@given(st.sampled_from([UNREACHABLE, Node("silent"), None]), st.booleans(), st.integers(-3600, 3600))
def test_a_pod_is_not_given_up_before_its_grace_has_ended_or_without_a_deletion(node: Node | None, deleting: bool, seconds: int) -> None:
    cluster = stuck(node=node)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=deleting, gone_by=GONE_BY if deleting else None)
    cluster.now = GONE_BY + timedelta(seconds=seconds)
    planned = cluster.round()
    is_due = deleting and node != Node("silent") and seconds >= PATIENCE_S
    assert ("train-worker-1" in deleted(planned)) == is_due
