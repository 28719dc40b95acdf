"""Check the node that the laptop cluster's scheduler chooses for a pod, and its words if no node fits."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_builder import asking, container, node, pod

from elastic.kube import quantity
from elastic.kube.placement import candidate, place, requests, room


def put(subject, *nodes, on=None):
    return place(subject, [candidate(each, (on or {}).get(each["metadata"]["name"], ())) for each in nodes])


def test_the_emptier_node_is_chosen_and_the_first_among_equals():
    assert put(asking(cpu="1"), node("a"), node("b")).node == "a"
    assert put(asking(cpu="1"), node("a"), node("b"), on={"a": [asking("other", cpu="2")]}).node == "b"


def test_a_full_cluster_says_what_is_short_on_how_many_nodes():
    placement = put(asking(cpu="5", nvidia_com__gpu="1"), node("a"), node("b", **{"nvidia.com/gpu": "2"}))
    assert placement.reason == "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 2 Insufficient cpu."
    assert placement.full == ("a", "b")


def test_finished_pods_take_no_room():
    done = asking("done", cpu="4")
    done["status"] = {"phase": "Succeeded"}
    assert put(asking(cpu="4"), node("a"), on={"a": [done]}).node == "a"


def test_a_node_takes_only_so_many_pods():
    crowded = {"a": [asking(f"p{index}") for index in range(10)]}
    assert put(asking(), node("a"), on=crowded).reason == "0/1 nodes are available: 1 Too many pods."


def test_a_taint_keeps_out_pods_that_do_not_tolerate_it():
    tainted = node(taints=({"key": "spot", "value": "yes", "effect": "NoSchedule"},))
    assert put(pod(), tainted).reason == "0/1 nodes are available: 1 node(s) had untolerated taint {spot: yes}."
    assert put(pod(tolerations=[{"key": "spot", "operator": "Exists"}]), tainted).node == "n"
    assert put(pod(tolerations=[{"key": "spot", "value": "yes", "effect": "NoSchedule"}]), tainted).node == "n"
    assert put(pod(tolerations=[{"key": "spot", "value": "no"}]), tainted).node is None
    assert put(pod(tolerations=[{"operator": "Exists"}]), tainted).node == "n"


def test_a_preference_of_a_taint_keeps_nobody_out():
    assert put(pod(), node(taints=({"key": "spot", "effect": "PreferNoSchedule"},))).node == "n"


def test_a_cordoned_node_is_unschedulable():
    cordoned = node()
    cordoned["spec"]["unschedulable"] = True
    assert put(pod(), cordoned).reason == "0/1 nodes are available: 1 node(s) were unschedulable."


def test_a_node_selector_wants_its_labels():
    assert put(pod(nodeSelector={"zone": "b"}), node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"})).node == "b"
    refused = put(pod(nodeSelector={"zone": "c"}), node())
    assert refused.reason == "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "gen", "operator": "In", "values": ["5"]}, True),
        ({"key": "gen", "operator": "NotIn", "values": ["5"]}, False),
        ({"key": "gen", "operator": "Exists"}, True),
        ({"key": "gen", "operator": "DoesNotExist"}, False),
        ({"key": "gen", "operator": "Gt", "values": ["4"]}, True),
        ({"key": "gen", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "absent", "operator": "NotIn", "values": ["1"]}, True),
    ],
)
def test_required_affinity_is_required(expression, fits):
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    subject = pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
    assert (put(subject, node(labels={"gen": "5"})).node is not None) is fits


def test_without_nodes_there_is_nothing_to_choose_from():
    assert place(pod(), []).reason == "no nodes available to schedule pods"


def test_a_pod_needs_what_its_containers_need_together_or_its_hungriest_init_container():
    needs = {"resources": {"requests": {"cpu": "1"}}}
    hungry = {"resources": {"requests": {"cpu": "3"}}}
    assert requests(pod(container("a", **needs), container("b", **needs)))["cpu"] == 2
    assert requests(pod(container("a", **needs), init=(container("i", **hungry),)))["cpu"] == 3
    assert (
        requests(pod(container("a", **needs), init=(container("s", restartPolicy="Always", **needs), container("i", **hungry))))["cpu"] == 4
    )


def test_limits_stand_in_for_requests_that_are_not_given():
    assert requests(pod(container(resources={"limits": {"nvidia.com/gpu": "2"}})))["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", Fraction(1, 2)), ("1Ki", 1024), ("2Gi", 2 * 1024**3), ("1k", 1000), ("1e3", 1000), ("0.5", Fraction(1, 2)), (3, 3)],
)
def test_quantities_are_exact(text, value):
    assert quantity.parse(text) == value


def test_an_invalid_quantity_is_refused():
    with pytest.raises(ValueError, match=r"quantity|Fraction"):
        quantity.parse("much")


@given(st.lists(st.integers(0, 5000), max_size=12), st.integers(1, 3))
def test_no_node_is_ever_promised_more_than_it_has(wishes, count):
    nodes = [node(f"n{index}") for index in range(count)]
    on = {each["metadata"]["name"]: [] for each in nodes}
    for index, wish in enumerate(wishes):
        subject = asking(f"p{index}", cpu=f"{wish}m")
        placement = put(subject, *nodes, on=on)
        if placement.node:
            on[placement.node].append(subject)
        else:
            assert placement.reason.startswith(f"0/{count} nodes are available")
    for each in nodes:
        assert all(left >= 0 for left in room(candidate(each, on[each["metadata"]["name"]])).values())
