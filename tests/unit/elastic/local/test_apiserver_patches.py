"""Merge, JSON and strategic merge patches of the laptop's API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.apiserver import patches, schemas
from elastic.local.apiserver.errors import StatusError

POD = schemas.component("io.k8s.api.core.v1.Pod")
Json = dict[str, Any]


def pod(*containers: Json, **spec: Any) -> Json:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def test_a_null_in_a_merge_patch_removes_and_a_list_replaces() -> None:
    assert patches.merge({"a": 1, "b": {"c": [1, 2], "d": 2}}, {"a": None, "b": {"c": [3]}}) == {"b": {"c": [3], "d": 2}}


def test_a_failed_test_of_a_json_patch_is_422_as_kopf_expects() -> None:
    with pytest.raises(StatusError) as refused:
        patches.json_patch({"metadata": {"resourceVersion": "5"}}, [{"op": "test", "path": "/metadata/resourceVersion", "value": "4"}])
    assert refused.value.code == 422


def test_replacing_a_key_that_is_not_there_adds_it() -> None:
    patched = patches.json_patch({"metadata": {"labels": {}}}, [{"op": "replace", "path": "/metadata/labels/a~1b", "value": "x"}])
    assert patched == {"metadata": {"labels": {"a/b": "x"}}}


@pytest.mark.parametrize("operations", [{"op": "add"}, [{"op": "fly"}], [{"path": "/a"}], ["add"], [{"op": "remove", "path": "/none"}]])
def test_a_wrong_json_patch_is_the_clients_fault(operations: Any) -> None:
    with pytest.raises(StatusError) as refused:
        patches.json_patch({}, operations)
    assert refused.value.code in (400, 422)


def test_a_strategic_patch_merges_containers_by_their_names() -> None:
    before = pod({"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "1"})
    after = patches.strategic(before, {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}}, POD)
    containers = {c["name"]: c for c in after["spec"]["containers"]}
    assert containers["b"] == {"name": "b", "image": "1"}
    assert containers["a"]["image"] == "1"
    assert {e["name"] for e in containers["a"]["env"]} == {"X", "Y"}


def test_directives_delete_replace_and_order() -> None:
    before = pod({"name": "a"}, {"name": "b"}, {"name": "c"}, nodeSelector={"x": "1"})
    gone = patches.strategic(before, {"spec": {"containers": [{"$patch": "delete", "name": "b"}]}}, POD)
    assert [c["name"] for c in gone["spec"]["containers"]] == ["a", "c"]
    replaced = patches.strategic(before, {"spec": {"containers": [{"name": "z"}, {"$patch": "replace"}]}}, POD)
    assert [c["name"] for c in replaced["spec"]["containers"]] == ["z"]
    order = {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}}
    assert [c["name"] for c in patches.strategic(before, order, POD)["spec"]["containers"]] == ["b", "c", "a"]
    fewer = patches.strategic(
        {"metadata": {"finalizers": ["a/x", "b/y"]}}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}}, POD
    )
    assert fewer["metadata"]["finalizers"] == ["b/y"]


def test_an_item_without_its_merge_key_is_refused() -> None:
    with pytest.raises(StatusError, match="does not contain declared merge key: name"):
        patches.strategic(pod({"name": "a"}), {"spec": {"containers": [{"image": "x"}]}}, POD)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(plain, st.dictionaries(st.text(max_size=2), plain, max_size=4))
def test_a_merge_patch_applied_twice_changes_nothing_more(target: Any, patch: Json) -> None:
    once = patches.merge(target, patch)
    assert patches.merge(once, patch) == once


names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(names, names)
def test_a_strategic_patch_keeps_every_container_and_adds_the_new(present: list[str], patched: list[str]) -> None:
    before = pod(*({"name": n, "image": "old"} for n in present))
    patch = {"spec": {"containers": [{"name": n, "image": "new"} for n in patched]}}
    after = patches.strategic(before, patch, POD)["spec"]["containers"]
    assert sorted(c["name"] for c in after) == sorted({*present, *patched})
    assert {c["name"]: c["image"] for c in after} == {**dict.fromkeys(present, "old"), **dict.fromkeys(patched, "new")}
    assert [c["name"] for c in after if c["name"] in patched] == patched


def test_a_json_patch_that_nests_deeper_with_each_operation_is_refused_in_words() -> None:
    """Shallow operations build what no request could hold, deep enough for the recursion of whatever looks at it later."""
    deeper = [{"op": "add", "path": "/spec" + "/a" * count, "value": {}} for count in range(1, 1500)]
    with pytest.raises(StatusError, match="nested more than 100 deep") as refused:
        patches.json_patch({"spec": {}}, deeper)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    "patch",
    [
        {"data": {"$retainKeys": 5}},
        {"data": {"$retainKeys": [{"a": 1}]}},
        {"data": {"$deleteFromPrimitiveList/f": 5}},
        {"data": {"$deleteFromPrimitiveList/g": ["x"]}},
    ],
)
def test_a_directive_of_the_wrong_form_is_a_bad_request(patch: Json) -> None:
    with pytest.raises(StatusError, match=r"\$retainKeys|\$deleteFromPrimitiveList") as refused:
        patches.strategic({"data": {"f": ["a"], "g": "text"}}, patch, {})
    assert refused.value.code == 400


def test_the_work_of_a_json_patch_grows_with_it_and_not_with_operations_times_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 operations copied an object of 1 MiB 10,000 times, which took the server's one thread for minutes."""
    copied = []
    original = copy.deepcopy

    def deepcopy(value: Any, *more: Any) -> Any:
        copied.append(len(value) if isinstance(value, dict) else 1)
        return original(value, *more)

    target = {"data": {f"key-{number}": "x" for number in range(1000)}, "kept": [1]}
    operations = [{"op": "add", "path": f"/data/new-{number}", "value": str(number)} for number in range(1000)]
    operations += [{"op": "add", "path": "/kept/-", "value": {"a": []}}] * 3
    before = original(target), original(operations)
    monkeypatch.setattr(copy, "deepcopy", deepcopy)
    patched = patches.json_patch(target, operations)
    assert sum(size for size in copied if size > 1) < 10
    assert len(patched["data"]) == 2000
    assert patched["kept"] == [1, {"a": []}, {"a": []}, {"a": []}]
    assert (target, operations) == before, "neither is changed: a patch is applied again after a conflict"


def test_a_json_patch_that_fails_halfway_leaves_the_object_as_it_was() -> None:
    target = {"a": {"b": 1}}
    with pytest.raises(StatusError):
        patches.json_patch(target, [{"op": "remove", "path": "/a/b"}, {"op": "test", "path": "/a", "value": 1}])
    assert target == {"a": {"b": 1}}
