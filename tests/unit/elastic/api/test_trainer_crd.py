"""Our definitions of TrainJob and its runtimes say the same as those of Kubeflow Trainer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.api.trainer.crd import definitions
from elastic.local.apiserver import crdchecks

RECORDED = json.loads((Path(__file__).parents[3] / "trainer" / "recordings" / "crds.json").read_text())
OURS = {made["spec"]["names"]["kind"]: made for made in definitions()}
KINDS = pytest.mark.parametrize("kind", list(RECORDED))
Facts = dict[str, Any]
MINOR = ("description", "x-kubernetes-map-type")
"""Facts that no client sees: texts, and how far server-side apply splits an object."""
KUBERNETES_OWN = ("valueFrom", "envFrom", "volumes", "grpc")
"""Below these fields of a pod, Kubernetes itself sets the defaults when it makes the pod."""


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    found = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema(RECORDED[found["$ref"]]) if "$ref" in found else found


def facts(node: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, Facts]]:
    """Yield each field's path, and what its schema says about the field itself."""
    own = {key: value for key, value in node.items() if key not in (*MINOR, "properties", "items", "additionalProperties")}
    if "required" in own:
        own["required"] = sorted(own["required"])
    if any(name in KUBERNETES_OWN for name in at):
        own.pop("default", None)
    if at[-1:] == ("finalizers",):
        own.pop("x-kubernetes-list-type", None)
    yield ".".join(at), own
    for name, child in node.get("properties", {}).items():
        yield from facts(child, (*at, name))
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from facts(node[key], (*at, "[]"))


@KINDS
def test_a_definition_has_upstreams_names_types_defaults_and_rules(kind: str) -> None:
    theirs, ours = dict(facts(schema(RECORDED[kind]))), dict(facts(schema(OURS[kind])))
    assert {path: ours.get(path) for path in theirs} == theirs


@KINDS
def test_a_definition_has_no_field_that_upstream_lacks(kind: str) -> None:
    """A template's creationTimestamp, which tools write as null, is the only one."""
    theirs, ours = dict(facts(schema(RECORDED[kind]))), dict(facts(schema(OURS[kind])))
    assert [path for path in ours.keys() - theirs.keys() if not path.endswith("metadata.creationTimestamp")] == []


@KINDS
def test_a_definition_has_upstreams_names_columns_and_subresources(kind: str) -> None:
    def outside(definition: dict[str, Any]) -> dict[str, Any]:
        (version,) = definition["spec"]["versions"]
        return definition["spec"] | {"versions": [{key: value for key, value in version.items() if key != "schema"}]}

    assert outside(OURS[kind]) == outside(RECORDED[kind])
    assert OURS[kind]["metadata"]["name"] == RECORDED[kind]["metadata"]["name"]


@KINDS
def test_the_laptops_api_server_takes_a_definition(kind: str) -> None:
    assert crdchecks.causes(OURS[kind]) == []
