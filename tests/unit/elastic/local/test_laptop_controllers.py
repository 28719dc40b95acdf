"""Check the decisions of the laptop cluster's controllers about ownership, disruption budgets and the health of nodes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web
from arbitrary_json import anything, places, planted
from hypothesis import given
from hypothesis import strategies as st
from served_api import served

from elastic.api.owners import Owner
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS
from elastic.local.agent.fleet import pods_cache
from elastic.local.agent.roster import Member, Roster
from elastic.local.controllers import garbage
from elastic.local.controllers.budget import Guarded, budget_status
from elastic.local.controllers.budgets import DisruptionBudgets
from elastic.local.controllers.discovery import read
from elastic.local.controllers.nodehealth import (
    NOT_READY,
    UNREACHABLE,
    UNSCHEDULABLE,
    eviction,
    listening_since,
    silent,
    taints,
    unknown_conditions,
)
from elastic.local.controllers.ownership import Delete, DeleteDependents, Disown, Item, OrphanDependents, Release, State, item, judge


def an_owner(uid, *, blocks=True):
    return Owner("v1", "Pod", "default", uid, uid, blocks=blocks)


def an_item(uid="child", owners=("parent",), deleting=False, finalizers=(), blocks=True):
    named = tuple(an_owner(owner, blocks=blocks) for owner in owners)
    return Item(PODS, "default", uid, uid, named, deleting, finalizers)


def test_an_object_goes_with_its_last_owner():
    assert judge(an_item(), {an_owner("parent"): State.ABSENT}, ()) == Delete("Background")
    assert judge(an_item(), {an_owner("parent"): State.PRESENT}, ()) is None


def test_an_object_that_others_still_own_only_forgets_the_one_that_went():
    states = {an_owner("parent"): State.ABSENT, an_owner("other"): State.PRESENT}
    assert judge(an_item(owners=("parent", "other")), states, ()) == Disown(("parent",))


def test_an_owner_that_waits_for_its_dependents_takes_them_along():
    assert judge(an_item(), {an_owner("parent"): State.WAITING}, ()) == Delete("Background")
    assert judge(an_item(), {an_owner("parent"): State.WAITING}, (an_item("grandchild", ("child",)),)) == Delete("Foreground")


def test_a_foreground_deletion_ends_when_nothing_blocks_it():
    parent = an_item("parent", (), deleting=True, finalizers=("foregroundDeletion",))
    assert judge(parent, {}, (an_item(),)) == DeleteDependents()
    assert judge(parent, {}, (an_item(blocks=False),)) == Release("foregroundDeletion")
    assert judge(parent, {}, ()) == Release("foregroundDeletion")


def test_an_orphaning_deletion_lets_the_dependents_go_first():
    parent = an_item("parent", (), deleting=True, finalizers=("orphan",))
    assert judge(parent, {}, (an_item(),)) == OrphanDependents()
    assert judge(parent, {}, ()) == Release("orphan")


def test_an_object_is_owned_only_by_what_all_of_its_reference_means():
    """A server may write the uid of another server's object."""
    parent, child = an_item("parent", ()), an_item()
    assert parent.owns(child)
    assert parent.waits_for(child)
    spoofed = [{"namespace": "other"}, {"name": "namesake"}, {"uid": "else"}]
    spoofed += [{"resource": replace(PODS, **field)} for field in ({"group": "evil.example"}, {"kind": "Thing"})]
    for wrong in spoofed:
        other = replace(parent, **wrong)
        assert not other.owns(child), wrong
        assert not other.waits_for(child), wrong
    assert not parent.waits_for(an_item(blocks=False))
    of_cluster = replace(parent, resource=replace(PODS, namespaced=False), namespace="")
    assert of_cluster.owns(child)
    assert not parent.owns(replace(child, namespace=""))


@pytest.mark.parametrize("namespaced", [True, False])
def test_an_object_without_the_namespace_of_its_kind_or_with_one_is_refused(namespaced):
    metadata = {"name": "n", "uid": "u"} | ({} if namespaced else {"namespace": "n"})
    with pytest.raises(msgspec.ValidationError, match="a namespace"):
        item(replace(PODS, namespaced=namespaced), {"metadata": metadata})


def a_budget(**spec):
    return {"metadata": {"generation": 2}, "spec": {"selector": {}, **spec}}


def guarded(count, **fields):
    return [Guarded(**{"name": f"w-{index}", "healthy": True, "leaving": False, **fields}) for index in range(count)]


def test_a_budget_spares_what_is_above_its_minimum():
    status = budget_status(a_budget(minAvailable=2), guarded(3), replicas=None, now=0.0)
    assert (status["disruptionsAllowed"], status["currentHealthy"], status["desiredHealthy"], status["expectedPods"]) == (1, 3, 2, 3)
    assert status["conditions"][0]["reason"] == "SufficientPods"
    assert budget_status(a_budget(minAvailable=2), guarded(3, leaving=True), replicas=None, now=0.0)["disruptionsAllowed"] == 0


def test_shares_are_of_the_wanted_replicas_and_rounded_up():
    assert budget_status(a_budget(minAvailable="50%"), guarded(3), replicas=5, now=0.0)["desiredHealthy"] == 3
    assert budget_status(a_budget(maxUnavailable="50%"), guarded(5), replicas=5, now=0.0)["desiredHealthy"] == 2
    assert budget_status(a_budget(maxUnavailable=1), guarded(5), replicas=5, now=0.0)["disruptionsAllowed"] == 1


def test_a_granted_eviction_counts_until_it_is_seen_or_forgiven():
    budget = a_budget(minAvailable=1) | {"status": {"disruptedPods": {"w-0": "1970-01-01T00:00:00Z", "gone": "1970-01-01T00:00:00Z"}}}
    soon = budget_status(budget, guarded(2), replicas=None, now=10.0)
    assert (soon["currentHealthy"], set(soon["disruptedPods"])) == (1, {"w-0"})
    late = budget_status(budget, guarded(2), replicas=None, now=200.0)
    assert (late["currentHealthy"], late["disruptedPods"]) == (2, None)


def a_node(ready="True", **spec):
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": "n", "creationTimestamp": "1970-01-01T00:00:00Z"}, "spec": spec, "status": {"conditions": conditions}}


def keys(found):
    return sorted((taint["key"], taint["effect"]) for taint in found)


def test_a_node_is_silent_when_its_lease_is_old():
    lease = {"spec": {"renewTime": "1970-01-01T00:01:40.000000Z"}}
    assert not silent(a_node(), lease, now=140.0, grace_s=50.0)
    assert silent(a_node(), lease, now=151.0, grace_s=50.0)
    assert silent(a_node(), None, now=51.0, grace_s=50.0)


def test_a_node_that_told_its_state_is_not_silent_for_the_lease_that_it_had_before():
    lease = {"spec": {"renewTime": "1970-01-01T00:01:40.000000Z"}}
    back = a_node()
    back["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "1970-01-01T01:00:00Z"}]
    assert not silent(back, lease, now=3605.0, grace_s=50.0)
    assert silent(back, lease, now=3651.0, grace_s=50.0)


def test_a_silent_nodes_conditions_become_unknown_once():
    conditions = unknown_conditions(a_node(), now=10.0)
    assert {entry["status"] for entry in conditions} == {"Unknown"}
    told = a_node()
    told["status"]["conditions"] = conditions
    assert unknown_conditions(told, now=20.0) == []


def test_taints_follow_what_the_node_says_and_leave_others_alone():
    theirs = {"key": "spot", "effect": "NoSchedule"}
    gone = taints(a_node("Unknown", taints=[theirs]), now=0.0)
    assert keys(gone) == [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule"), ("spot", "NoSchedule")]
    assert keys(taints(a_node("False"), now=0.0)) == [(NOT_READY, "NoExecute"), (NOT_READY, "NoSchedule")]
    assert taints(a_node("True", taints=gone), now=0.0) == [theirs]
    assert taints(a_node("Unknown", taints=gone), now=9.0) is None
    assert keys(taints(a_node(unschedulable=True), now=0.0)) == [(UNSCHEDULABLE, "NoSchedule")]


def test_a_pod_leaves_a_tainted_node_at_once_later_or_never():
    taint = {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": "1970-01-01T00:00:10Z"}
    toleration = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    assert eviction({"spec": {}}, [taint], now=20.0).at == 20.0
    assert eviction({"spec": {"tolerations": [{**toleration, "tolerationSeconds": 300}]}}, [taint], now=20.0).at == 310.0
    assert eviction({"spec": {"tolerations": [toleration]}}, [taint], now=20.0).at is None
    assert eviction({"spec": {}}, [{"key": "spot", "effect": "NoSchedule"}], now=20.0).at is None


def test_a_killed_node_stays_away_until_the_cluster_restarts_or_it_is_added_again():
    first = (Member("node-0"), Member("node-1"))
    killed = Roster("holder-1").without("node-0")
    assert [member.name for member in killed.members(first)] == ["node-1"]
    assert [member.name for member in killed.for_holder("holder-1").members(first)] == ["node-1"]
    assert [member.name for member in killed.for_holder("holder-2").members(first)] == ["node-0", "node-1"]
    assert [member.name for member in killed.with_member(Member("node-0")).members(first)] == ["node-0", "node-1"]


def test_an_added_node_comes_back_with_the_cluster_until_it_is_killed():
    first = (Member("node-0"),)
    added = Roster("holder-1").with_member(Member("spare", gpus=2)).with_member(Member("other"))
    restarted = added.for_holder("holder-2")
    assert restarted.members(first) == [Member("node-0"), Member("spare", gpus=2), Member("other")]
    killed = restarted.without("spare")
    assert killed.killed == ("spare",)
    assert killed.for_holder("holder-3").members(first) == [Member("node-0"), Member("other")]


def test_a_silence_that_was_our_own_is_no_silence_of_the_nodes():
    assert listening_since(100.0, looked_at=500.0, now=505.0) == 100.0
    assert listening_since(100.0, looked_at=500.0, now=4000.0) == 4000.0


THINGS = {"resource": "things", "scope": "Namespaced", "responseKind": {"group": "", "version": "", "kind": "Thing"}, "verbs": ["list"]}
GROUP = {"metadata": {"name": "a.example"}, "versions": [{"version": "v1", "resources": [THINGS], "freshness": "Current"}]}
OTHER = {
    "metadata": {"name": "b.example"},
    "versions": [{"version": "v1", "resources": [{**THINGS, "verbs": ["list", "watch", "delete"]}], "freshness": "Current"}],
}


@given(data=st.data())
def test_an_invalid_group_is_told_as_unknown_and_costs_no_other_group(data):
    wrong = planted(GROUP, data.draw(st.sampled_from(places(GROUP))), data.draw(anything))
    kinds = read([{"items": json.loads(json.dumps([wrong, OTHER]))}])
    assert [resource.api_version for resource in kinds.resources if resource.group == "b.example"] == ["b.example/v1"]
    assert kinds.versions["b.example"] == ("v1",)


def test_the_problems_of_a_group_are_told():
    wrong = {**GROUP, "versions": [{"version": "v1", "resources": [{**THINGS, "verbs": 5}]}, {"version": "v2", "freshness": "Stale"}]}
    kinds = read([{"items": [wrong, 5]}])
    assert kinds.failed == {
        "a.example/v1": "Expected `array | null`, got `int` - at `$.resources[0].verbs`",
        "a.example/v2": "stale GroupVersion discovery: a.example/v2",
        "the API's group 1": "Expected `object`, got `int`",
    }
    with pytest.raises(KubeError, match="Malformed: expected an APIGroupDiscoveryList"):
        read([{"value": []}])


GOOD = {"name": "n", "namespace": "n", "uid": "u", "finalizers": ["f"]}
OBJECT = {"metadata": {**GOOD, "ownerReferences": [{"uid": "o", "apiVersion": "v1", "kind": "Pod", "name": "p"}]}}


@given(data=st.data())
def test_an_object_of_any_shape_is_refused_or_can_be_judged(data):
    wrong = planted(OBJECT, data.draw(st.sampled_from([at for at in places(OBJECT) if at])), data.draw(anything))
    try:
        read_item = item(PODS, wrong)
    except msgspec.ValidationError:
        return
    assert {read_item.uid, read_item.name, read_item.namespace, *read_item.finalizers}
    judge(read_item, dict.fromkeys(read_item.owners, State.PRESENT), ())


async def test_an_invalid_scale_costs_only_the_budgets_that_count_by_it():
    """An invalid scale ended the laptop's agents."""
    owner = {"uid": "o", "apiVersion": "a.example/v1", "kind": "Thing", "name": "t", "controller": True}
    pods = [
        {"metadata": {"namespace": name, "name": "p", "uid": name, "ownerReferences": owners}, "spec": {}}
        for name, owners in (("wrong", [owner]), ("well", []))
    ]
    budgets = [
        {"metadata": {"namespace": name, "name": "b", "uid": name, "resourceVersion": "1"}, "spec": {"selector": {}, "minAvailable": "50%"}}
        for name in ("wrong", "well")
    ]
    written, told = [], asyncio.Event()

    async def answers(request: web.Request) -> web.Response:
        match request.method, request.path.split("/")[-1]:
            case "PATCH", _:
                written.append(request.path.split("/")[5])
                told.set()
                return web.json_response({})
            case "GET", "api" | "apis" as path:
                return web.json_response({"items": [{**OTHER, "metadata": {"name": "a.example"}}] if path == "apis" else []})
            case "GET", "scale":
                return web.json_response({"spec": 5})
        if "watch" in request.query:
            await asyncio.Event().wait()
        listed = budgets if "poddisruptionbudgets" in request.path else pods
        return web.json_response({"items": listed, "metadata": {"resourceVersion": "1"}})

    async with served(answers) as kube, asyncio.timeout(20), asyncio.TaskGroup() as group:
        seen = pods_cache(kube)
        tasks = [group.create_task(seen.run()), group.create_task(DisruptionBudgets(kube, seen).run())]
        await told.wait()
        for task in tasks:
            task.cancel()
    assert written == ["well"]


async def test_kinds_that_a_server_comes_to_serve_are_collected_though_no_object_shows_it(monkeypatch):
    """Its API service stays unchanged. An available server may serve more kinds, and stale kinds may be known again."""
    monkeypatch.setattr(garbage, "LOOK_AGAIN_S", 0.05)
    asked, listed, says = asyncio.Event(), asyncio.Event(), []

    async def answers(request: web.Request) -> web.Response:
        if request.path in ("/api", "/apis"):
            found = [*says] if request.path == "/apis" else []
            if request.path == "/apis":
                asked.set()
            return web.json_response({"items": found})
        if "watch" in request.query:
            await asyncio.Event().wait()
        if request.path == "/apis/b.example/v1/things":
            listed.set()
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})

    async with served(answers) as kube, asyncio.timeout(20), asyncio.TaskGroup() as group:
        collecting = group.create_task(garbage.GarbageCollector(kube).run())
        await asked.wait()
        says.append(OTHER)
        await listed.wait()
        collecting.cancel()
