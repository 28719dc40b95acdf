"""The CRDs: structural, current under deploy/, and of one mind with parse."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from arbitrary_json import anything, places, planted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_api_properties import parsed
from written_jobs import Mistake, job, job_names, mistakes

from elastic.api import KINDS
from elastic.api.crd import crd, field_texts
from elastic.api.job import (
    ElasticPolicy,
    ElasticStatus,
    KindOptions,
    ReplicaSpec,
    RestartBudget,
    RunPolicy,
    ScalingPolicy,
    SchedulingPolicy,
)
from elastic.local.apiserver.custom import Custom

FOLDER = Path(__file__).parents[4] / "deploy" / "crds"
KIND_PARAMS = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)


def schema_of(kind: str) -> dict[str, Any]:
    return crd(KINDS[kind])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield at, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{at}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{at}[]")


def refusal(validator: jsonschema.Draft202012Validator, obj: Any) -> str | None:
    error = jsonschema.exceptions.best_match(validator.iter_errors(without_nulls(obj)))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


def without_nulls(value: Any) -> Any:
    """Check that a null field counts as an absent one, as in the API server."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


VALIDATORS = {name: jsonschema.Draft202012Validator(schema_of(name)) for name in KINDS}


@KIND_PARAMS
def test_the_crds_under_deploy_are_those_of_the_model(kind):
    assert yaml.load((FOLDER / f"{kind.crd_name}.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) == crd(kind)


@KIND_PARAMS
def test_the_schema_is_structural(kind):
    for at, node in nodes(schema_of(kind.name)):
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node), at
        assert not {"$ref", "allOf", "oneOf", "not", "nullable"} & set(node), at
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"].get("required", ()) or "default" in node["items"]["properties"][key], at
        if "default" in node:
            assert re.search(r"\.(protocol|name)$", at), f"{at} writes a default into stored objects"


@KIND_PARAMS
def test_columns_begin_with_upstreams_and_every_kind_can_be_scaled(kind):
    version = crd(kind)["spec"]["versions"][0]
    state = {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"}
    age = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    assert version["additionalPrinterColumns"][:2] == ([age, state] if kind.name == "MPIJob" else [state, age])
    paths = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"][2:]}
    assert list(paths) == ["Workers", "Wanted", "World", "Restarts", "Rescaled", "Waits For"]
    assert paths["Wanted"] == f".spec.{kind.replica_key}.Worker.replicas"
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": f".spec.{kind.replica_key}.Worker.replicas",
            "statusReplicasPath": ".status.replicaStatuses.Worker.active",
            "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
        },
    }


@KIND_PARAMS
def test_every_column_is_a_number_or_words(kind):
    """RESTARTS was the JSON of a map by cause."""
    elastic = {"worldSize": 3, "restarts": {"user": 2, "plan": 5}, "restartCount": 2, "waitsFor": "room", "lastRescale": {"at": None}}
    status = {"conditions": [{"type": "Running"}], "replicaStatuses": {"Worker": {"active": 3}}, "elastic": elastic}
    made = Custom(crd(kind)["spec"]["versions"][0])
    cells = made.cells({"metadata": {"name": "train"}, "spec": {kind.replica_key: {"Worker": {"replicas": 4}}}, "status": status})
    shown = dict(zip([column["name"] for column in made.columns()], cells, strict=True))
    wanted = {"State": "Running", "Workers": 3, "Wanted": 4, "World": 3, "Restarts": 2, "Waits For": "room"}
    assert {name: shown[name] for name in wanted} == wanted
    assert not [cell for cell in cells if isinstance(cell, str) and "{" in cell]


@pytest.mark.parametrize(
    "model", [ElasticPolicy, RunPolicy, SchedulingPolicy, ReplicaSpec, RestartBudget, ScalingPolicy, KindOptions, ElasticStatus]
)
def test_every_field_a_user_may_write_says_what_it_is(model):
    described_by_their_own_type = {
        "scheduling_policy",
        "restart_budget",
        "scaling_policy",
        "progress",
        "autoscaler",
        "hang",
        "last_rescale",
        "leaving",
    }
    assert {field.name for field in msgspec.structs.fields(model)} - described_by_their_own_type <= set(field_texts(model))


def test_nothing_inside_the_pod_template_is_described():
    spec = schema_of("PyTorchJob")["properties"]["spec"]["properties"]["pytorchReplicaSpecs"]["additionalProperties"]
    template = spec["properties"]["template"]
    assert template.pop("description")
    assert [at for at, node in nodes(template) if "description" in node] == []
    assert {"containers", "volumes", "topologySpreadConstraints"} <= set(template["properties"]["spec"]["properties"])


@pytest.mark.parametrize("name", job_names())
def test_the_schema_takes_every_good_job(name):
    obj = job(name)
    assert refusal(VALIDATORS[obj["kind"]], obj) is None


@pytest.mark.parametrize("mistake", [m for m in mistakes() if m.job["kind"] in KINDS], ids=lambda mistake: mistake.name)
def test_the_schema_refuses_what_the_table_says_it_refuses(mistake: Mistake):
    assert (refusal(VALIDATORS[mistake.job["kind"]], mistake.job) is not None) == (mistake.server == "schema")


@pytest.mark.parametrize("mistake", [m for m in mistakes() if m.server == "rule"], ids=lambda mistake: mistake.name)
def test_a_rule_says_what_parse_says(mistake: Mistake):
    causes = served(mistake.job["kind"]).validate(without_nulls(mistake.job))
    assert [cause.message for cause in causes if mistake.rule in cause.message], causes


@functools.cache
def served(kind: str) -> Custom:
    return Custom(crd(KINDS[kind])["spec"]["versions"][0])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_schema_takes_every_job_that_parse_takes(data):
    good = job(data.draw(st.sampled_from(job_names())))
    at = data.draw(st.sampled_from([at for at in places(good) if at[:1] == ("spec",)]))
    bad = planted(good, at, data.draw(anything))
    if parsed(bad) is not None and bad.get("kind") in KINDS:
        assert refusal(VALIDATORS[bad["kind"]], bad) is None
