"""A signal that only informs is an Event, once, where it is news; nothing else happens."""

from dataclasses import replace
from typing import Any

import pytest
from job_builders import OURS, Cluster, created, deleted, elastic_job, tainted
from test_plan_spare_workers import running

from elastic.signals.rows import read_table
from elastic_training.controller.deciding.actions import JobEvent
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Node, PodPhase, node_from, pod_from

CANDIDATE = "DeletionCandidateOfClusterAutoscaler"
STATES = [
    "kubernetes.azure.com/scalesetpriority=spot",
    "karpenter.sh/unregistered",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
]


def seen(cluster: Cluster) -> list[JobEvent]:
    plans = cluster.settle()
    assert not [name for planned in plans for name in (*created(planned), *deleted(planned))]
    elastic = cluster.job.status.elastic
    assert elastic is None or (elastic.disruptions, elastic.leaving) == ((), ())
    return [event for event in plans[-1].news if event.reason == "SignalSeen"]


def with_taint(*taints: tuple[str, str], settings: Settings = OURS) -> Cluster:
    cluster = running(elastic_job(2), settings)
    listed = [{"key": key.partition("=")[0], "value": key.partition("=")[2], "effect": effect} for key, effect in taints]
    cluster.nodes["node-1"] = node_from({"metadata": {"name": "node-1"}, "spec": {"taints": listed}})
    return cluster


def frozen(since: str) -> Node:
    message = "Freeze Scheduled: Thu, 01 Jan 2026 12:00:31 GMT"
    condition = {"type": "VMEventScheduled", "status": "True", "message": message, "lastTransitionTime": since}
    return tainted("node-1", status={"conditions": [condition]})


def test_it_names_signal_and_node_and_says_that_nothing_is_done() -> None:
    (event,) = seen(with_taint((CANDIDATE, "PreferNoSchedule")))
    assert event.type == "Normal"
    where = "signal autoscaler-candidate on node node-1 (the node counts as unneeded; often taken back)"
    assert event.message == f"PyTorchJob train: {where}; nothing is done about it."


def test_it_stays_the_same_event_until_the_condition_comes_true_again() -> None:
    cluster = running(elastic_job(2))
    said = []
    for since in ("2026-01-01T12:00:00Z", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"):
        cluster.nodes["node-1"] = frozen(since)
        said += seen(cluster)
    assert said[0] == said[1]
    assert said[0].about != said[2].about


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize("taint", STATES)
def test_other_facts_about_a_node_are_no_news(taint: str, effect: str) -> None:
    assert seen(with_taint((taint, effect))) == []


def test_the_pods_of_one_node_are_one_event_and_those_that_are_over_none() -> None:
    cluster = with_taint((CANDIDATE, "PreferNoSchedule"))
    cluster.pods = {name: replace(one, node="node-1") for name, one in cluster.pods.items()}
    assert len(set(seen(cluster))) == 1
    cluster.pods = {name: replace(one, phase=PodPhase.SUCCEEDED) for name, one in cluster.pods.items()}
    assert not [event for event in cluster.round().news if event.reason == "SignalSeen"]


@pytest.mark.parametrize("row", ["seenIn: node taint, key: mine", "seenIn: pod condition, key: mine"])
def test_a_row_of_the_installation_is_news(row: str) -> None:
    table = read_table(f"signals: [{{name: ours, {row}, meaning: inform}}]", name="f").rows
    cluster = running(elastic_job(1))
    raw: dict[str, Any] = {"metadata": {"name": "node-0"}, "spec": {"taints": [{"key": "mine"}]}}
    cluster.nodes["node-0"] = node_from(raw, table)
    condition = {"metadata": {"name": "train-worker-0"}, "status": {"conditions": [{"type": "mine", "status": "True"}]}}
    look = cluster.look
    sights = pod_from(condition, table).sights
    cluster.look = lambda: replace(look(), pods=tuple(replace(one, sights=sights) for one in cluster.pods.values()))  # type: ignore[method-assign]
    (event,) = seen(cluster)
    assert event.message.startswith("PyTorchJob train: signal ours on ")
