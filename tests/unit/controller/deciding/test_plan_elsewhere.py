"""A pod that is made while nodes of its job go prefers other nodes; nothing else about it changes."""

import copy
import itertools
from typing import Any

import pytest
from job_builders import NOW, OURS, elastic_job, job, pod, pod_for, replica, snapshot, tainted

from elastic.kube.answers import WatchEvent, WatchType
from elastic.kube.placement import candidate, place
from elastic_training.controller.deciding.objects.elsewhere import MOST_NODES, PREFERRED
from elastic_training.controller.facts.keys import Key
from elastic_training.controller.facts.snapshot import Node
from elastic_training.controller.watching.observe import Observer, resources_of

ANNOTATED = {"annotations": {"karpenter.sh/node-termination-time": "2026-01-01T12:05:00Z"}}


def wishes(made: dict[str, Any]) -> list[Any]:
    return list((made["spec"].get("affinity") or {}).get("nodeAffinity", {}).get(PREFERRED, []))


def avoided(made: dict[str, Any]) -> list[str]:
    return [field["values"][0] for wish in wishes(made) for field in wish["preference"]["matchFields"]]


def test_a_replacement_prefers_nodes_that_stay() -> None:
    nodes = {"a": tainted("a", **ANNOTATED), "b": Node("b"), "c": tainted("c", "DeletionCandidateOfClusterAutoscaler")}
    look = snapshot(pod(node="a"), pod(index=1, node="b"), settings=OURS, nodes=nodes)
    assert avoided(pod_for(elastic_job(2), "Worker", 2, look)) == ["a"]


@pytest.mark.parametrize("kind", ["PyTorchJob", "TFJob"])
def test_a_pod_prefers_nodes_that_stay_also_to_those_where_the_job_has_none(kind: str) -> None:
    """A replacement came to a node that another job's pods were leaving, and had to go again."""
    look = snapshot(pod(node="b"), settings=OURS, nodes={"b": tainted("b", **ANNOTATED)}, doomed=("c", "a", "b"))
    assert avoided(pod_for(job(kind, Worker=replica(2, kind=kind)), "Worker", 1, look)) == ["b", "a", "c"]


def test_a_node_is_known_to_go_wherever_the_jobs_pods_are() -> None:
    nothing: Any = None
    view, key = (
        Observer(nothing, kinds=["PyTorchJob"], resources=resources_of(["PyTorchJob"], gang_scheduler="")),
        Key("PyTorchJob", "n", "j"),
    )
    assert view._nodes is not None

    versions = itertools.count(1)

    def doomed(**metadata: Any) -> tuple[str, ...]:
        assert view._nodes is not None
        raw = {"metadata": {"name": "a", "uid": "a", "resourceVersion": str(next(versions)), **metadata}, "spec": {}, "status": {}}
        view._nodes._take(WatchEvent(WatchType.MODIFIED, raw))
        return view.snapshot(key, {"metadata": {"uid": "u"}}, now=NOW, settings=OURS).doomed

    assert doomed() == ()
    assert doomed(**ANNOTATED) == ("a",)
    assert doomed() == ()


def test_the_users_own_affinity_stays() -> None:
    mine = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": []}}]}, "podAffinity": {"x": 1}}
    one = job(Worker=replica(1, affinity=mine))
    before = copy.deepcopy(one.replicas["Worker"].template)
    made = pod_for(one, "Worker", 0, snapshot(nodes={"a": tainted("a", **ANNOTATED)}))
    assert [wish["weight"] for wish in wishes(made)] == [1, 100]
    assert made["spec"]["affinity"]["podAffinity"] == {"x": 1}
    assert one.replicas["Worker"].template == before


def test_without_a_node_that_goes_a_pod_is_as_it_always_was() -> None:
    one = elastic_job(1)
    assert pod_for(one, "Worker", 0, snapshot(nodes={"b": Node("b")})) == pod_for(one, "Worker", 0, snapshot())


def test_a_pod_names_a_bounded_number_of_nodes() -> None:
    nodes = {f"n{i}": tainted(f"n{i}", **ANNOTATED) for i in range(100)}
    assert len(avoided(pod_for(elastic_job(1), "Worker", 0, snapshot(nodes=nodes)))) == MOST_NODES


def test_the_laptops_scheduler_follows_the_wish_unless_there_is_no_other_node() -> None:
    made = pod_for(elastic_job(1), "Worker", 0, snapshot(nodes={"a": tainted("a", **ANNOTATED)}))
    offers = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    a, b = (candidate({"metadata": {"name": name}, "status": {"allocatable": offers}}, []) for name in "ab")
    assert place(made, [a, b]).node == "b"
    assert place(made, [a]).node == "a"
