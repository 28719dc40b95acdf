"""Check the autoscaler's page `/metrics`: the room of the cluster, and extreme figures and names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from autoscale_cluster import node, pod
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen
from elastic_training.autoscale.deciding.signals import Bounds
from elastic_training.autoscale.figures import JobFigures, JobName
from elastic_training.autoscale.running.metrics import GAUGES, Metrics
from elastic_training.autoscale.serving.answers import CUSTOM, EXTERNAL, Asked, Known, Reply, values
from elastic_training.autoscale.serving.tolerated import ToleratedSize
from elastic_training.autoscale.serving.values import NAMES

Labels = Mapping[str, str]
NOW = 1_800_000_000.0
ONE = JobFigures(key=JobName("PyTorchJob", "ns", "one"), uid="1", replicas=2, bounds=Bounds(1, 8), working=2, wanted=3)
ODD = ('a"b', "a\\b", "a\nb", 'a\\"} 1\nelastic_job_workers{job="x"', "\t,=}{#", "\N{SNOWMAN}", "")
WILD = (math.nan, math.inf, -math.inf)


@dataclass
class Book:
    all: Sequence[JobFigures] = ()
    is_known: bool = True

    def of(self, key: JobName) -> JobFigures | None:
        return next((job for job in self.all if job.key == key), None)

    def jobs(self, namespace: str | None = None) -> Sequence[JobFigures]:
        return self.all


def page(*jobs: JobFigures, nodes: Sequence[NodeSeen] = (), pods: Sequence[PodSeen] = ()) -> dict[str, list[tuple[Labels, float]]]:
    """Return what Prometheus reads from the page: the series with their values, by name."""
    registry = CollectorRegistry()
    Metrics(registry, Book(jobs), leads=lambda: True, sent={}, cluster=lambda: (nodes, pods))
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_free_room_is_told_by_group_of_nodes_and_kind_of_capacity() -> None:
    pool, spot = {"karpenter.sh/nodepool": "a"}, {"karpenter.sh/capacity-type": "spot"}
    nodes = [node("n1", 4, **pool), node("n2", 8, **pool), node("s1", 16, **pool, **spot), node("plain", 2)]
    pods = [pod("p1", on="n1"), pod("p2", on="n1"), pod("p3", on="s1"), pod("elsewhere", on="unknown"), pod("waits")]
    found = page(nodes=nodes, pods=pods)["elastic_cluster_free"]
    assert {(labels["group"], labels["capacity"]): value for labels, value in found if labels["resource"] == "cpu"} == {
        ("a", "on-demand"): 10.0,
        ("a", "spot"): 15.0,
        ("", "on-demand"): 2.0,
    }
    assert {labels["resource"] for labels, _ in found} == {"cpu", "pods"}


def test_a_node_with_more_than_it_offers_has_no_room_and_owes_none() -> None:
    found = page(nodes=[node("n1", 1), node("n2", 3)], pods=[pod(f"p{i}", on="n1") for i in range(5)])["elastic_cluster_free"]
    assert [value for labels, value in found if labels["resource"] == "cpu"] == [3.0]


def test_a_pod_is_without_room_until_it_has_a_node() -> None:
    pods = [pod("waits", since=NOW), pod("waits-too", since=NOW), pod("new"), pod("placed", on="n", since=NOW)]
    assert page(pods=pods)["elastic_cluster_pods_without_room"] == [({}, 2.0)]
    assert page()["elastic_cluster_pods_without_room"] == [({}, 0.0)]


@pytest.mark.parametrize("text", ODD)
def test_a_name_with_any_sign_in_it_is_one_label_of_one_series(text: str) -> None:
    odd = replace(ONE, key=JobName("PyTorchJob", text, text), seconds={text: 1.0})
    found = page(odd, nodes=[node("n", 4, **{"karpenter.sh/nodepool": text})])
    assert found["elastic_job_workers"] == [({"namespace": text, "kind": "PyTorchJob", "job": text}, 2.0)]
    ((labels, _),) = found["elastic_job_spent_seconds_total"]
    assert labels["phase"] == text
    assert {labels["group"] for labels, _ in found["elastic_cluster_free"]} == {text}


@pytest.mark.parametrize("amount", WILD)
def test_an_invalid_number_has_no_series(amount: float) -> None:
    wild = replace(ONE, throughput=amount, efficiency=amount, marginal_efficiency=amount, goodput=amount, rescale_s=amount, left_s=amount)
    found = page(wild)
    assert {f"elastic_job_{name}" for name in GAUGES} & set(found) == {"elastic_job_workers", "elastic_job_wanted_workers"}


def test_huge_and_tiny_values_are_told_as_they_are() -> None:
    found = page(replace(ONE, throughput=1e300, goodput=5e-324))
    assert [found[name][0][1] for name in ("elastic_job_throughput", "elastic_job_goodput")] == [1e300, 5e-324]


def answer(group: str, job: JobFigures, metric: str, *, name: str = "*") -> Reply:
    asked = Asked(group, "v1beta1", job.key.namespace, "pytorchjobs.kubeflow.org" if group == CUSTOM else "", name, metric)
    return values(asked, {}, Known(Book([job]), lambda job: ToleratedSize(job.wanted or 0), lambda uid: ()), now=NOW)


@pytest.mark.parametrize("group", [CUSTOM, EXTERNAL])
@pytest.mark.parametrize("amount", [*WILD, 1e300, -1e300, 2.0**53 + 2])
def test_the_metrics_apis_have_no_value_for_what_no_quantity_can_hold(group: str, amount: float) -> None:
    wild = replace(ONE, throughput=amount, efficiency=amount, marginal_efficiency=amount, goodput=amount, rescale_s=amount, left_s=amount)
    told = [name for name in NAMES if answer(group, wild, name).body["items"]]
    assert set(told) <= {"desired_workers", "training_workers", "throughput_per_worker"}
    if abs(amount / 2) > 2**53 or not math.isfinite(amount):
        assert "throughput_per_worker" not in told


@pytest.mark.parametrize(
    ("amount", "text"),
    [(2.0**53, "9007199254740992"), (1e-9, "0"), (-0.0, "0"), (0.0015, "2m"), (-1.5, "-1500m"), (-2.0, "-2"), (1 / 3, "333m")],
)
def test_a_value_is_a_quantity_to_the_thousandth(amount: float, text: str) -> None:
    (item,) = answer(CUSTOM, replace(ONE, goodput=amount), "goodput").body["items"]
    assert item["value"] == text


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("group", [CUSTOM, EXTERNAL])
def test_the_metrics_apis_tell_a_name_with_any_sign_in_it_as_it_is(group: str, text: str) -> None:
    odd = replace(ONE, key=JobName("PyTorchJob", text, text))
    reply = json.loads(json.dumps(answer(group, odd, "training_workers").body, allow_nan=False))
    (item,) = reply["items"]
    assert (item["metricLabels"]["job"] if group == EXTERNAL else item["describedObject"]["name"]) == text
    refused = answer(group, odd, text)
    assert (refused.status, json.loads(json.dumps(refused.body))["reason"]) == (404, "NotFound")
    assert len(refused.body["message"]) < 500
