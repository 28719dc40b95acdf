"""A pod that has yet to begin on a node that goes: it is made elsewhere at once, and no place is filled there again and again."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, Cluster, created, deleted, elastic_job, reasons, tainted
from test_plan_doomed_pods import GKE, JOBS, REBALANCE, SPOT, at_store, running

from elastic_training.controller.facts.snapshot import Node, PodPhase, WorldSeen

ALL = {**JOBS, "ours": elastic_job}
LOST = "node.kubernetes.io/unreachable"
LATER = {"annotations": {"karpenter.sh/node-termination-time": (NOW + timedelta(days=2)).isoformat()}}


def with_one_unbegun(kind: str) -> tuple[Cluster, str]:
    """Return a cluster in which all work except the last worker, whose container is being created, and that worker's name."""
    cluster = running(ALL[kind]())
    last = max(cluster.names())
    cluster.set(last, PodPhase.PENDING)
    if kind == "ours":
        cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods) - {last}, phase="running")
    cluster.settle()
    return cluster, last


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("taint", [SPOT, GKE])
def test_it_is_made_elsewhere_at_once(kind: str, taint: str) -> None:
    """Nothing was made or deleted until its container ran."""
    cluster, name = with_one_unbegun(kind)
    uid, node = cluster.pods[name].uid, cluster.pods[name].node
    cluster.nodes[node] = tainted(node, taint)
    plans = cluster.settle()
    assert [gone for planned in plans for gone in deleted(planned)] == [name]
    assert [made for planned in plans for made in created(planned)] == [name if kind not in ("c10d", "ours") else "train-worker-3"]
    assert uid not in {one.uid for one in cluster.pods.values()}
    elastic = cluster.job.status.elastic
    assert elastic is not None
    assert [(entry.signal != "", entry.node, entry.outcome) for entry in elastic.disruptions] == [(True, node, "Left")]
    assert (elastic.leaving, elastic.restarts) == ((), {})
    assert reasons(plans).count("DisruptionAnnounced") == 1


def test_it_goes_once_the_status_says_that_it_leaves() -> None:
    cluster, name = with_one_unbegun("ours")
    cluster.nodes[cluster.pods[name].node] = tainted("node-2", SPOT)
    first = cluster.round()
    assert (created(first), deleted(first)) == (["train-worker-3"], [])
    assert [entry.member for entry in cluster.told[-1].leaving] == [name]
    assert deleted(cluster.round()) == [name]


@pytest.mark.parametrize("kind", ALL)
def test_an_unbegun_worker_begins_if_its_node_only_may_have_to_go(kind: str) -> None:
    cluster, name = with_one_unbegun(kind)
    cluster.nodes[cluster.pods[name].node] = tainted(cluster.pods[name].node, REBALANCE)
    assert [made for planned in cluster.settle() for made in (*created(planned), *deleted(planned))] == []


def test_on_a_node_that_is_gone_it_is_replaced_and_left_to_the_cluster() -> None:
    cluster, name = with_one_unbegun("ours")
    cluster.nodes[cluster.pods[name].node] = tainted(cluster.pods[name].node, LOST)
    plans = cluster.settle()
    assert [made for planned in plans for made in created(planned)] == ["train-worker-3"]
    assert not any(map(deleted, plans))


def test_one_that_is_deleted_for_another_reason_is_no_disruption() -> None:
    cluster, name = with_one_unbegun("ours")
    cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
    cluster.settle()
    cluster.nodes[cluster.pods[name].node] = tainted(cluster.pods[name].node, SPOT)
    assert "DisruptionAnnounced" not in reasons(cluster.settle())
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.leaving == ()


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.RUNNING])
def test_if_new_pods_come_to_the_same_node_again_they_wait_longer_and_longer(phase: PodPhase) -> None:
    """Its signal keeps no pods away, and there is room nowhere else."""
    cluster, name = with_one_unbegun("ours")
    node, made = cluster.pods[name].node, 0
    cluster.nodes[node] = tainted(node, **LATER)
    for _ in range(600):
        cluster.pods = {name: one for name, one in cluster.pods.items() if not one.is_deleting}
        for one in [one for one in cluster.pods.values() if not one.node]:
            cluster.set(one.name, phase, node=node)
        made += len(created(cluster.round()))
        cluster.now += timedelta(seconds=1)
    assert 3 < made < 50
    cluster.nodes[node] = Node(node)
    cluster.now += timedelta(seconds=300)
    cluster.settle()
    assert len(cluster.pods) == 3


def lands(cluster: Cluster, node: str) -> int:
    """Let pending pods run there, in a few rounds. Return how many workers there are then."""
    for _ in range(5):
        for one in [one for one in cluster.pods.values() if one.phase is PodPhase.PENDING]:
            cluster.set(one.name, PodPhase.RUNNING, node=node)
        cluster.now += timedelta(seconds=1)
        cluster.settle()
    return len([one for one in cluster.pods.values() if not one.is_deleting])


@pytest.mark.parametrize("signal", [LATER, REBALANCE], ids=["goes in two days", "may have to go"])
def test_at_c10d_a_replacement_that_comes_to_a_node_which_goes_is_joined_by_no_other(signal: object) -> None:
    """Each one that began there was told to leave, and replaced by another that came there."""
    cluster = running(at_store())
    doomed = tainted("node-2", signal) if isinstance(signal, str) else tainted("node-2", **signal)
    cluster.nodes["node-2"] = doomed
    assert lands(cluster, "node-2") == 4

    first = min(cluster.names())
    cluster.nodes[cluster.pods[first].node] = replace(doomed, name=cluster.pods[first].node)
    assert lands(cluster, "node-2") == 5, "a worker that has worked has its own replacement"

    cluster.nodes["node-3"] = Node("node-3")
    del cluster.pods[max(cluster.names())]
    assert lands(cluster, "node-3") == 5, "one that is lost there is made elsewhere"


@pytest.mark.parametrize("kind", ["c10d", "ours"])
def test_a_replacement_that_finds_no_room_is_joined_by_no_other(kind: str) -> None:
    cluster, name = with_one_unbegun(kind)
    cluster.set(name, PodPhase.RUNNING)
    cluster.nodes[cluster.pods[name].node] = tainted(cluster.pods[name].node, **LATER)
    cluster.settle()
    before = cluster.names()
    assert len(before) == 4
    for one in [one for one in cluster.pods.values() if one.phase is PodPhase.PENDING]:
        cluster.pods[one.name] = replace(one, unscheduled="0/3 nodes are available")
    for _ in range(10):
        cluster.now += timedelta(seconds=60)
        cluster.settle()
    assert cluster.names() == before
