"""Custom resources: pruning, defaults, validation, CEL rules, columns; and which definitions are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.apiserver import crdchecks, rules, structural
from elastic.local.apiserver.custom import Custom, path_value

Json = dict[str, Any]
SPEC: Json = {
    "type": "object",
    "required": ["replicas"],
    "x-kubernetes-validations": [
        {"rule": "!has(self.minReplicas) || self.minReplicas <= self.replicas", "message": "minReplicas must not exceed replicas"}
    ],
    "properties": {
        "replicas": {"type": "integer", "minimum": 0, "maximum": 9},
        "minReplicas": {"type": "integer"},
        "policy": {"type": "string", "enum": ["Running", "All"], "default": "Running"},
        "port": {"x-kubernetes-int-or-string": True},
        "queue": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "queue is immutable"}]},
        "run": {"type": "object", "properties": {"clean": {"type": "boolean", "default": True}}},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
VERSION = {"name": "v1", "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}}}
KIND = Custom(VERSION)


def thing(**spec: Any) -> Json:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec}


def shaped(**spec: Any) -> tuple[Json, list[str]]:
    unknown: list[str] = []
    obj = KIND.shape(thing(**spec), "Thing", unknown)
    KIND.default(obj)
    return obj, unknown


def complaints(new: Json, old: Json | None = None) -> list[tuple[str, str]]:
    found = KIND.validate(new) if old is None else KIND.validate_update(new, old)
    return [(c.field, c.message) for c in found]


def test_unknown_fields_are_pruned_and_told_unless_they_are_kept() -> None:
    obj, unknown = shaped(replicas=1, frob=1, free={"any": {"thing": 1}}, run={"x": 1})
    assert unknown == ["spec.frob", "spec.run.x"]
    assert obj["spec"]["free"] == {"any": {"thing": 1}}
    assert "frob" not in obj["spec"]


def test_defaults_fill_what_is_missing_or_null_and_only_inside_what_is_there() -> None:
    assert shaped(replicas=1, policy=None)[0]["spec"] == {"replicas": 1, "policy": "Running"}
    assert shaped(replicas=1, run={})[0]["spec"]["run"] == {"clean": True}


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({}, "spec.replicas", "Required value"),
        ({"replicas": 10}, "spec.replicas", "Invalid value: 10: spec.replicas in body should be less than or equal to 9"),
        ({"replicas": "two"}, "spec.replicas", 'must be of type integer: "string"'),
        ({"replicas": 1, "policy": "Some"}, "spec.policy", 'Unsupported value: "Some": supported values: "Running", "All"'),
        ({"replicas": 1, "port": 1.5}, "spec.port", "must be of type integer,string"),
        ({"replicas": 1, "ports": [{"name": "a"}, {"name": "a"}]}, "spec.ports[1]", 'Duplicate value: {"name":"a"}'),
        ({"replicas": 1, "minReplicas": 2}, "spec", "Invalid value: minReplicas must not exceed replicas"),
    ],
)
def test_a_breach_of_the_schema_is_told_with_its_field(spec: Json, field: str, message: str) -> None:
    found = complaints(thing(**spec))
    assert found[0][0] == field
    assert message in found[0][1]


def test_rules_are_not_run_on_an_object_of_wrong_types_and_that_is_said() -> None:
    found = complaints(thing(replicas=1, minReplicas=2, policy="Some"))
    assert [f for f, _ in found] == ["spec.policy", "<nil>"]
    assert "some validation rules were not checked" in found[1][1]


def test_a_rule_about_the_old_value_runs_only_if_there_is_one() -> None:
    assert complaints(thing(replicas=1, queue="a")) == []
    assert complaints(thing(replicas=1, queue="a"), thing(replicas=1)) == []
    assert complaints(thing(replicas=1, queue="b"), thing(replicas=1, queue="a")) == [
        ("spec.queue", 'Invalid value: "b": queue is immutable')
    ]


def test_a_value_that_was_wrong_before_and_did_not_change_is_let_through() -> None:
    wrong = thing(replicas=1, minReplicas=2)
    changed = copy.deepcopy(wrong)
    changed["metadata"]["labels"] = {"a": "b"}
    assert complaints(changed, wrong) == []


def test_a_rule_that_cannot_be_evaluated_refuses_with_its_text() -> None:
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": "self.none > 1"}]}
    found = rules.check(schema, {"other": 1}, None)
    assert found[0].field == "<nil>"
    assert "no such key: none" in found[0].message


def test_message_expression_reason_and_field_path_are_used() -> None:
    rule = {"rule": "self.n != 13", "messageExpression": "'unlucky ' + string(self.n)", "reason": "FieldValueForbidden", "fieldPath": ".n"}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule]}}}
    [found] = rules.check(schema, {"spec": {"n": 13}}, None)
    assert (found.field, found.reason, found.message) == ("spec.n", "FieldValueForbidden", "Forbidden: unlucky 13")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".spec.n", 1),
        (".spec.list[1]", "b"),
        (".spec.list[-1:]", "b"),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        (".status.conditions[-1:].type", "Done"),
        (".metadata.labels['example.com/a']", "x"),
        (".metadata.labels.example\\.com/a", None),
        (".spec.none.n", None),
    ],
)
def test_simple_json_paths(path: str, value: Any) -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Done", "status": "False"}]
    obj = {"spec": {"n": 1, "list": ["a", "b"]}, "status": {"conditions": conditions}, "metadata": {"labels": {"example.com/a": "x"}}}
    assert path_value(obj, path) == value


def test_printer_columns_show_what_lies_at_their_paths() -> None:
    columns = [{"name": "N", "type": "integer", "jsonPath": ".spec.replicas"}, {"name": "Age", "type": "date", "jsonPath": ".spec.since"}]
    kind = Custom({**VERSION, "additionalPrinterColumns": columns})
    assert [c["name"] for c in kind.columns()] == ["Name", "N", "Age"]
    assert kind.cells(thing(replicas=2)) == ["a", 2, None]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SPEC["properties"], "name", "x"]), inner, max_size=4),
    max_leaves=8,
)


@given(values)
def test_pruning_and_defaulting_twice_changes_nothing_more(value: Any) -> None:
    once = structural.prune(copy.deepcopy(value), SPEC, "", [])
    structural.default(once, SPEC)
    unknown: list[str] = []
    twice = structural.prune(copy.deepcopy(once), SPEC, "", unknown)
    structural.default(twice, SPEC)
    assert twice == once
    assert unknown == []


@given(st.dictionaries(st.sampled_from([*SPEC["properties"], "x"]), values, max_size=5))
def test_validation_of_anything_ends_in_causes(spec: Json) -> None:
    obj = structural.prune(thing(**spec), KIND.schema, "", [])
    structural.default(obj, KIND.schema)
    assert all(c.field and c.message for c in KIND.validate(obj))


# ---------------------------------------------------------------------- definitions
def definition(schema: Json | None = None, **spec: Any) -> Json:
    version: Json = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": schema if schema is not None else {"type": "object"}}
    names = {"plural": "things", "kind": "Thing"}
    base = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "things.example.com"}, "spec": base | spec}


def test_a_plain_definition_is_accepted() -> None:
    assert crdchecks.causes(definition()) == []


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (definition() | {"metadata": {"name": "wrong"}}, "metadata.name"),
        (definition(scope="Everywhere"), "spec.scope"),
        (definition(versions=[]), "spec.versions"),
        (definition(versions=[{"name": "v1", "served": True, "storage": True}]), "spec.versions[0].schema.openAPIV3Schema"),
        (definition({"type": "object", "properties": {"spec": {}}}), "spec.validation.openAPIV3Schema.properties[spec].type"),
        (
            definition({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
            "spec.validation.openAPIV3Schema.properties[a].default",
        ),
        (definition({"type": "object", "properties": {"a": {"type": "array"}}}), "spec.validation.openAPIV3Schema.properties[a].items"),
        (
            definition({"type": "object", "x-kubernetes-validations": [{"rule": "self.none > 1"}]}),
            "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule",
        ),
        (
            definition({"type": "object", "x-kubernetes-validations": [{"rule": "self.(("}]}),
            "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule",
        ),
    ],
)
def test_an_invalid_definition_is_refused_at_its_field(obj: Json, field: str) -> None:
    assert field in [c.field for c in crdchecks.causes(obj)]
