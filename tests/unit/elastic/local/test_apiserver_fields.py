"""Check the owners of fields after server-side apply and after plain writes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.apiserver import fieldsets, kinds, managed
from elastic.local.apiserver.calls import Call, User
from elastic.local.apiserver.errors import StatusError

Json = dict[str, Any]
HOME = str(Path(managed.__file__).parent)
POD = next(t for t in kinds.built_in() if t.kind == "Pod")
SHAPE = fieldsets.built_in(POD.schema_name)


def call(manager: str, *, force: bool = False, apply: bool = True) -> Call:
    query = {"fieldManager": manager} | ({"force": "true"} if force else {})
    media = "application/apply-patch+yaml" if apply else "application/merge-patch+json"
    return Call("patch", POD, "default", "p", "", query, User("somebody"), media=media)


def config(labels: dict[str, str] | None = None, **spec: Any) -> Json:
    made: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}}
    if labels is not None:
        made["metadata"]["labels"] = labels
    return made | ({"spec": spec} if spec else {})


def owners(obj: Json) -> dict[str, list[str]]:
    return {o.manager.name: sorted(fieldsets.shown(p) for p in o.fields) for o in managed.read(obj)}


def test_applying_records_exactly_what_was_applied() -> None:
    made = managed.apply(call("one"), None, config({"app": "a"}, containers=[{"name": "main", "image": "i"}]))
    item = '.spec.containers[name="main"]'
    assert owners(made) == {"one": [".metadata.labels.app", item, f"{item}.image", f"{item}.name"]}


def test_a_field_that_is_no_longer_applied_goes_unless_somebody_else_owns_it() -> None:
    live = managed.apply(call("one"), None, config({"app": "a", "mine": "1"}))
    live = managed.apply(call("two"), live, config({"app": "a"}))
    live = managed.apply(call("one"), live, config({}))
    assert live["metadata"]["labels"] == {"app": "a"}
    live = managed.apply(call("two"), live, config({}))
    assert "labels" not in live["metadata"]


def test_a_field_of_another_manager_is_a_conflict_until_forced() -> None:
    live = managed.apply(call("one"), None, config({"app": "a"}))
    with pytest.raises(StatusError) as refused:
        managed.apply(call("two"), live, config({"app": "b"}))
    assert refused.value.code == 409
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "one": .metadata.labels.app'
    live = managed.apply(call("two", force=True), live, config({"app": "b"}))
    assert owners(live) == {"two": [".metadata.labels.app"]}


def test_a_plain_write_takes_what_it_changes() -> None:
    live = managed.apply(call("one"), None, config({"app": "a", "kept": "1"}))
    new = copy.deepcopy(live)
    new["metadata"]["labels"]["app"] = "z"
    managed.on_write(call("editor", apply=False), new, live)
    assert owners(new) == {"one": [".metadata.labels.kept"], "editor": [".metadata.labels.app"]}


def test_items_of_a_list_by_keys_have_owners_of_their_own() -> None:
    live = managed.apply(call("one"), None, config(None, containers=[{"name": "a", "image": "1"}]))
    live = managed.apply(call("two"), live, config(None, containers=[{"name": "b", "image": "2"}]))
    assert [c["name"] for c in live["spec"]["containers"]] == ["a", "b"]
    live = managed.apply(call("one"), live, config(None))
    assert [c["name"] for c in live["spec"]["containers"]] == ["b"]


def test_a_port_is_known_by_its_number_and_its_default_protocol() -> None:
    shape = SHAPE.child("spec").child("containers").item.child("ports")
    assert shape.step({"containerPort": 80}) == shape.step({"containerPort": 80, "protocol": "TCP"})


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(StatusError, match=r"\.spec\.frob: field not declared in schema"):
        managed.apply(call("one"), None, config(None, frob=1))


def test_many_plain_writers_are_kept_as_one() -> None:
    live: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}
    for i in range(30):
        new = copy.deepcopy(live)
        new["metadata"].setdefault("annotations", {})[f"a{i}"] = "x"
        managed.on_write(call(f"writer-{i}", apply=False), new, live)
        live = new
    assert len(live["metadata"]["managedFields"]) <= 11
    owned = {f for fields in owners(live).values() for f in fields}
    assert owned >= {f".metadata.annotations.a{i}" for i in range(30)}


labels = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy"), max_size=4)
containers = st.lists(st.sampled_from("mnop"), unique=True, max_size=3).map(lambda ns: [{"name": n, "image": "i"} for n in ns])
configs = st.builds(lambda marks, cs: config(marks, containers=cs), labels, containers)


@given(configs)
def test_applying_the_same_twice_changes_nothing(wanted: Json) -> None:
    once = managed.apply(call("one"), None, wanted)
    assert managed.same(managed.apply(call("one"), once, wanted), once)


@given(configs, configs)
def test_one_manager_alone_gets_exactly_what_it_applied_last(first: Json, second: Json) -> None:
    live = managed.apply(call("one"), managed.apply(call("one"), None, first), second)
    alone = managed.apply(call("one"), None, second)
    assert live["metadata"].get("labels") or (alone["metadata"].get("labels") or {}) == {}
    names = [c["name"] for c in (live.get("spec") or {}).get("containers") or ()]
    assert sorted(names) == sorted(c["name"] for c in second["spec"]["containers"])


@given(configs, configs)
def test_fields_keep_one_owner_after_a_forced_apply_of_other_values(first: Json, second: Json) -> None:
    live = managed.apply(call("one"), None, first)
    live = managed.apply(call("two", force=True), live, second)
    changed = fieldsets.compare(SHAPE, managed.apply(call("one"), None, first), second).modified
    for path in changed:
        holders = [o.manager.name for o in managed.read(live) if path in o.fields]
        assert holders == ["two"] or not holders


@given(configs)
def test_a_set_of_fields_survives_its_encoding(wanted: Json) -> None:
    fields = fieldsets.of(SHAPE, wanted)
    assert fieldsets.decode(fieldsets.encode(fields)) == fields


def work(made: Callable[[], Json]) -> tuple[int, Json]:
    """Return the number of the API server's lines that a call runs, and its result."""
    count = 0

    def each(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return each if frame.f_code.co_filename.startswith(HOME) else None

    traced = sys.gettrace()
    sys.settrace(each)
    try:
        result = made()
    finally:
        sys.settrace(traced)
    return count, result


def variables(names: Iterable[str]) -> Json:
    return config(None, containers=[{"name": "main", "image": "i", "env": [{"name": name, "value": "v"} for name in names]}])


def applied_in_turn(managers: int, *, fields: int) -> list[int]:
    """Return the work of each apply if all managers apply the same."""
    live, taken = None, []
    names = [f"e{index}" for index in range(fields)]
    for index in range(managers):
        count, live = work(lambda live=live, index=index: managed.apply(call(f"m{index}"), live, variables(names)))  # type: ignore[misc]
        taken.append(count)
    return taken


def test_to_apply_takes_no_more_work_if_many_managers_own_the_same_fields() -> None:
    taken = applied_in_turn(20, fields=100)
    assert taken[-1] - taken[1] < 20 * 60, "a few lines for each other manager, and none for each of its fields"


def test_to_apply_twice_the_fields_takes_at_most_twice_the_work() -> None:
    once, twice = (applied_in_turn(3, fields=fields)[-1] for fields in (200, 400))
    assert twice <= 2 * once + 200


def test_to_apply_a_list_in_another_order_takes_work_in_proportion_to_its_length() -> None:
    """For each item that had moved forward, all remaining items were looked through."""
    taken = []
    for size in (200, 400):
        there, more = [f"e{index}" for index in range(size)], [f"f{index}" for index in range(size)]
        live = managed.apply(call("one"), None, variables(there))
        wanted = [*reversed(there), *more]
        count, live = work(lambda live=live, wanted=wanted: managed.apply(call("two"), live, variables(wanted)))  # type: ignore[misc]
        assert [variable["name"] for variable in live["spec"]["containers"][0]["env"]] == wanted
        taken.append(count)
    assert taken[1] <= 2 * taken[0] + 200


def test_a_field_that_another_manager_takes_away_is_gone_from_its_owners_and_nothing_else() -> None:
    live = managed.apply(call("one"), None, config({"app": "a", "tier": "x"}))
    live = managed.apply(call("two"), live, config({"app": "a"}))
    live = managed.apply(call("three", force=True), live, config({"app": "b"}))
    assert owners(live) == {"one": [".metadata.labels.tier"], "three": [".metadata.labels.app"]}
