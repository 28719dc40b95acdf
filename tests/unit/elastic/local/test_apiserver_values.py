"""Small languages of the API: quantities, selectors, types, tables, paths, Accept headers, protobuf."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.kube import quantity
from elastic.local.apiserver import kinds, negotiation, paths, protobuf, quantities, schemas, selectors, tables
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.negotiation import Form
from elastic.local.apiserver.typed import Decoder, WrongType


@pytest.mark.parametrize(
    ("given_text", "canonical"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1500Ki", "1500Ki"),
        ("1e3", "1e3"),
        ("2", "2"),
        ("0", "0"),
        ("128974848", "128974848"),
    ],
)
def test_quantities_take_the_form_that_a_server_answers(given_text: str, canonical: str) -> None:
    assert quantities.canonical(given_text) == canonical


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "Gi", "--1"])
def test_an_invalid_quantity_is_told(text: str) -> None:
    assert quantities.canonical(text) is None


@given(st.integers(0, 10**15), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_the_usual_form_means_the_same(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    form = quantities.canonical(text)
    assert form is not None
    assert quantity.parse(form) == quantity.parse(text)
    assert quantities.canonical(form) == form


LABELS = {"app": "web", "tier": "front", "empty": "", "n": "5"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("app=web", True), ("app==web,tier=front", True), ("app!=web", False), ("none!=x", True), ("app in (web, db)", True),
        ("app notin (web)", False), ("none notin (a)", True), ("tier", True), ("!tier", False), ("!none", True), ("empty=", True),
        ("n>4", True), ("n<4", False), ("app>1", False), ("", True),
    ],
)  # fmt: skip
def test_label_selectors(text: str, matches: bool) -> None:
    selector = selectors.label_selector(text)
    assert (selector is None or selector(LABELS)) is matches


@pytest.mark.parametrize("text", ["app ~ web", "app=not ok", "a in (b", "=x", "n>x"])
def test_an_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        selectors.label_selector(text)
    assert refused.value.code == 400


def test_an_unknown_field_cannot_be_selected_by() -> None:
    with pytest.raises(StatusError, match=r"field label not supported: spec\.colour"):
        selectors.field_selector("spec.colour=red", ["metadata.name"])


def decoded(kind: str, **fields: Any) -> tuple[Any, list[str]]:
    decoder = Decoder(kind)
    name = next(t.schema_name for t in kinds.built_in() if t.kind == kind)
    return decoder.decode(fields, schemas.component(name)), decoder.unknown


def test_unknown_fields_nulls_and_empties_are_dropped_and_times_made_plain() -> None:
    obj, unknown = decoded(
        "Pod",
        metadata={"name": "p", "labels": {}, "creationTimestamp": None, "deletionTimestamp": "2024-01-02T04:04:05.9+01:00"},
        spec={"containers": [{"name": "a", "imagePolicy": "x", "resources": {"limits": {"cpu": 2}}}], "restart": "Never"},
    )
    assert unknown == ["spec.containers[0].imagePolicy", "spec.restart"]
    assert obj["metadata"] == {"name": "p", "deletionTimestamp": "2024-01-02T03:04:05Z"}
    assert obj["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "2"}}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("ConfigMap", {"data": {"a": 1}}, "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        ("Pod", {"spec": {"priority": "high"}}, "json: cannot unmarshal string into Go struct field Pod.spec.priority of type int32"),
        ("Lease", {"spec": {"renewTime": "2024-01-02T03:04:07.5Z"}}, 'cannot parse ".5Z" as ".000000"'),
        ("ConfigMap", {"binaryData": {"a": "!"}}, "illegal base64 data at input byte 0"),
    ],
)
def test_a_value_of_a_wrong_type_names_its_field(kind: str, fields: Any, message: str) -> None:
    with pytest.raises(WrongType) as wrong:
        decoded(kind, **fields)
    assert message in str(wrong.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "metadata", "name", "containers", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(json_values)
def test_decoding_ends_in_an_object_or_in_a_wrong_type_and_nothing_else(value: Any) -> None:
    for kind in ("Pod", "ConfigMap", "CustomResourceDefinition"):
        name = next(t.schema_name for t in kinds.built_in() if t.kind == kind)
        try:
            Decoder(kind).decode(value, schemas.component(name))
        except WrongType:
            continue


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (700, "11m"), (3 * 3600, "3h"), (3 * 3600 + 60, "3h1m"),
        (49 * 3600, "2d1h"), (9 * 86400, "9d"), (800 * 86400, "2y70d")],
)  # fmt: skip
def test_ages_read_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert tables.duration(seconds) == text


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/api/v1/namespaces/a/pods/b/log", ("", "v1", "a", "pods", "b", "log")),
        ("/api/v1/namespaces/a", ("", "v1", "", "namespaces", "a", "")),
        ("/api/v1/namespaces/a/status", ("", "v1", "", "namespaces", "a", "status")),
        ("/apis/kubeflow.org/v1/namespaces/a/pytorchjobs", ("kubeflow.org", "v1", "a", "pytorchjobs", "", "")),
        ("/apis/g.io/v1/things/x/scale", ("g.io", "v1", "", "things", "x", "scale")),
    ],
)
def test_paths_name_resource_object_and_subresource(path: str, parts: tuple[str, ...]) -> None:
    target = paths.parse(path)
    assert target is not None
    assert (target.group, target.version, target.namespace, target.plural, target.name, target.subresource) == parts


@pytest.mark.parametrize("path", ["/", "/api", "/api/v1", "/apis/apps/v1", "/healthz", "/api//v1/pods"])
def test_other_paths_name_no_object(path: str) -> None:
    assert paths.parse(path) is None


KUBECTL_GET = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.JSON), ("*/*", Form.JSON), (KUBECTL_GET, Form.TABLE), ("application/vnd.kubernetes.protobuf,application/json", Form.JSON),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Form.JSON), ("application/yaml", Form.YAML),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", Form.PARTIAL),
    ],
)  # fmt: skip
def test_the_first_form_that_can_be_served_wins(accept: str, form: Form) -> None:
    assert negotiation.chosen(accept) is form


def test_a_format_that_cannot_be_served_is_406() -> None:
    with pytest.raises(StatusError) as refused:
        negotiation.chosen("application/xml")
    assert refused.value.code == 406


CREATE_CONFIG_MAP = "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEh0KEwoDY20yEgAaACIAKgAyADgAQgASBgoBYRIBYhoAIgA="


def test_protobuf_of_kubectl_create_is_read() -> None:
    read = protobuf.decode(base64.b64decode(CREATE_CONFIG_MAP), "ConfigMap")
    assert (read["kind"], read["metadata"]["name"], read["data"]) == ("ConfigMap", "cm2", {"a": "b"})


@given(st.binary(max_size=60))
def test_no_bytes_do_worse_than_being_refused(body: bytes) -> None:
    with contextlib.suppress(StatusError):
        protobuf.decode(b"k8s\x00" + body, "ConfigMap")
