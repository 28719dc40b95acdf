"""Protobuf bodies, as kubectl's imperative commands send them: every field of built-in kinds is found, and nothing breaks the reader."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.apiserver import kinds, protobuf, schemas
from elastic.local.apiserver.errors import StatusError


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(version: str, kind: str, *fields: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, version) + field(2, kind)) + field(2, b"".join(fields))


def named(name: str) -> bytes:
    return field(1, field(1, name))


def decoded(version: str, kind: str, *fields: bytes) -> dict[str, Any]:
    return protobuf.decode(envelope(version, kind, *fields), kind)


def test_a_deployment_comes_with_its_whole_template() -> None:
    mount = field(1, "v") + field(2, 0) + field(3, "/v")
    port = field(1, "web") + field(2, 0) + field(3, 80)
    limits = field(1, field(1, "cpu") + field(2, field(1, "500m")))
    probe = field(1, field(2, field(1, "/healthz") + field(2, field(1, 1) + field(3, "web")))) + field(2, 0)
    container = field(1, "c") + field(2, "image") + field(4, "a") + field(6, port) + field(8, limits) + field(9, mount) + field(10, probe)
    volume = field(1, "v") + field(2, field(19, field(1, field(1, "settings"))))
    pod = field(1, volume) + field(2, container) + field(3, "Always") + field(4, 0) + field(10, "") + field(11, 0)
    template = field(1, field(11, field(1, "app") + field(2, "x")) + field(8, b"")) + field(2, pod)
    spec = field(1, 0) + field(2, field(1, field(1, "app") + field(2, "x"))) + field(3, template) + field(5, 0)
    assert decoded("apps/v1", "Deployment", named("d"), field(2, spec), field(3, b"")) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "status": {},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {
                    "restartPolicy": "Always",
                    "terminationGracePeriodSeconds": 0,
                    "volumes": [{"name": "v", "configMap": {"name": "settings"}}],
                    "containers": [
                        {
                            "name": "c",
                            "image": "image",
                            "args": ["a"],
                            "ports": [{"name": "web", "containerPort": 80}],
                            "resources": {"limits": {"cpu": "500m"}},
                            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "web"}},
                        }
                    ],
                },
            },
        },
    }


def test_times_numbers_and_bytes_have_their_json_forms() -> None:
    made = decoded(
        "v1", "Secret", field(1, field(1, "s") + field(8, field(1, 1700000000))), field(2, field(1, "k") + field(2, b"\x00\x01"))
    )
    assert made["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert made["data"] == {"k": "AAE="}
    lease = decoded("coordination.k8s.io/v1", "Lease", field(2, field(4, field(1, 1700000000) + field(2, 5000))))
    assert lease["spec"]["renewTime"] == "2023-11-14T22:13:20.000005Z"
    budget = decoded(
        "policy/v1", "PodDisruptionBudget", field(2, field(1, field(1, 0) + field(2, -1)) + field(3, field(1, 1) + field(3, "5%")))
    )
    assert budget["spec"] == {"minAvailable": -1, "maxUnavailable": "5%"}


def test_a_kind_without_protobuf_is_refused_with_what_to_send_instead() -> None:
    with pytest.raises(StatusError, match="application/json") as refused:
        decoded("example.com/v1", "Thing", named("x"))
    assert refused.value.code == 415


def test_every_field_that_is_numbered_is_one_of_its_component() -> None:
    table = protobuf._names()
    for component, names in table.items():
        known = schemas.component(component).get("properties")
        for name in names:
            if name and name.startswith("+"):
                assert name[1:] in table, component
            elif name and known is not None:
                assert name in known, component
    served = {t.schema_name for t in kinds.built_in() if t.group not in ("apiextensions.k8s.io", "apiregistration.k8s.io")}
    assert served <= table.keys()


@given(
    st.sampled_from([("v1", "Pod"), ("batch/v1", "Job"), ("v1", "Event"), ("autoscaling/v2", "HorizontalPodAutoscaler")]),
    st.binary(max_size=200),
)
def test_any_body_is_an_object_or_a_refusal(kind: tuple[str, str], body: bytes) -> None:
    whole = (envelope(*kind, body), envelope(*kind, field(2, body)), envelope(*kind, field(2, field(2, body))))
    for sent in (body, b"k8s\x00" + body, *whole):
        with contextlib.suppress(StatusError):
            assert isinstance(protobuf.decode(sent, kind[1]), dict)


def test_nesting_has_a_bottom() -> None:
    inner = b""
    for _ in range(protobuf._DEEPEST + 1):
        inner = field(2, field(3, inner))
    with pytest.raises(StatusError) as refused:
        decoded("batch/v1", "CronJob", inner)
    assert refused.value.code == 400


def test_a_number_in_a_double_is_read() -> None:
    data = struct.pack("<d", 1.5)
    assert protobuf._value(data, {"type": "number"}, 0) == 1.5
