"""The server answers every write with an object or a Status and never breaks: mutated objects through every writing verb, in process."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from elastic.local.apiserver.calls import Call, User
from elastic.local.apiserver.datadir import DataDir
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.server import ApiServer

Json = dict[str, Any]
ADMIN = User("admin", ("system:masters",))
JUNK: list[Any] = [None, True, 0, -1, 1.5, 2**62, "", "x", [], {}, [None], [{}], {"a": None}, "2024-01-02T03:04:05Z", "1Gi", {"name": 1}]
MEDIA = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
    "json": "application/json-patch+json",
}
POD_SPEC: Json = {
    "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1}], "env": [{"name": "A", "value": "b"}]}],
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "volumes": [{"name": "v", "emptyDir": {}}],
}
RULE = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
HOOK_RULE = {"operations": ["CREATE"], "apiGroups": ["none.io"], "apiVersions": ["v1"], "resources": ["pods"]}
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"n": {"type": "integer", "default": 1}, "a": {"type": "array", "items": {"type": "string"}}},
        }
    },
}
CRD_SPEC: Json = {
    "group": "example.com",
    "scope": "Namespaced",
    "names": {"plural": "things", "kind": "Thing"},
    "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": SCHEMA}}],
}
SEEDS: list[tuple[str, str, Json]] = [
    ("v1", "Pod", {"spec": POD_SPEC}),
    ("v1", "ConfigMap", {"data": {"a": "b"}, "binaryData": {"c": "AA=="}}),
    ("v1", "Service", {"spec": {"ports": [{"port": 1, "name": "a"}], "selector": {"a": "b"}}}),
    ("v1", "Event", {"involvedObject": {"namespace": "default"}, "eventTime": "2024-01-02T03:04:05.000000Z"}),
    ("v1", "Node", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "1"}}}),
    (
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        {"spec": {"scaleTargetRef": {"kind": "X", "name": "y"}, "maxReplicas": 3, "metrics": [{"type": "Pods"}]}},
    ),
    (
        "policy/v1",
        "PodDisruptionBudget",
        {"spec": {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}},
    ),
    ("coordination.k8s.io/v1", "Lease", {"spec": {"leaseDurationSeconds": 1, "renewTime": "2024-01-02T03:04:05.000000Z"}}),
    ("rbac.authorization.k8s.io/v1", "Role", {"rules": [RULE]}),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        {"roleRef": {"kind": "Role", "name": "x"}, "subjects": [{"kind": "User", "name": "x"}]},
    ),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", {"webhooks": [{"name": "a.b.c", "rules": [HOOK_RULE]}]}),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", {"spec": CRD_SPEC}),
]


def mutated(value: Any, dice: random.Random) -> Any:
    if dice.random() < 0.08:
        return dice.choice(JUNK)
    if isinstance(value, dict):
        out = {k: mutated(v, dice) for k, v in value.items() if dice.random() > 0.05}
        if dice.random() < 0.05:
            out[dice.choice([*value, "x", "status", "$patch"])] = dice.choice(JUNK)
        return out
    if isinstance(value, list):
        return [mutated(v, dice) for v in value] + ([dice.choice(JUNK)] if dice.random() < 0.1 else [])
    return value


def operations(dice: random.Random) -> list[Json]:
    paths = ["/spec", "/metadata/name", "/metadata/labels/x", "/spec/containers/0", "/", "", "/metadata"]
    ops = ["add", "remove", "replace", "test", "copy", "move"]
    return [{"op": dice.choice(ops), "path": dice.choice(paths), "value": dice.choice(JUNK), "from": "/spec"}]


async def write(server: ApiServer, dice: random.Random) -> None:
    version, name, rest = dice.choice(SEEDS)
    group, _, number = version.rpartition("/")
    kind = server.registry.by_kind(group, number, name)
    assert kind is not None
    called = "things.example.com" if name == "CustomResourceDefinition" else "p"
    body = mutated(
        {"apiVersion": version, "kind": name, "metadata": {"name": called, "labels": {"a": "b"}, "finalizers": ["a/b"]}, **rest}, dice
    )
    namespace = "default" if kind.namespaced else ""
    verb = dice.choice(["create", "create", "update", "delete", *MEDIA])
    sub = "status" if dice.random() < 0.2 and kind.sub("status") and verb in MEDIA else ""
    if verb == "json":
        body = operations(dice)
    if verb == "delete":
        body = mutated({"gracePeriodSeconds": 0, "preconditions": {"uid": "x"}, "propagationPolicy": "Orphan"}, dice)
    query = {"fieldManager": dice.choice("ab"), "force": dice.choice(["true", "false"])} if verb == "apply" else {}
    call = Call(
        "patch" if verb in MEDIA else verb, kind, namespace, "" if verb == "create" else called, sub, query, ADMIN,
        body=json.dumps(body).encode(), media=MEDIA.get(verb, "application/json"), agent="test/1",
    )  # fmt: skip
    match verb:
        case "create":
            await server.writes.create(call)
        case "update":
            await server.writes.update(call)
        case "delete":
            await server.writes.delete(call)
        case _:
            await server.writes.patch(call)


@pytest.mark.parametrize("seed", range(4))
async def test_every_write_ends_in_an_object_or_a_status(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    server = ApiServer(DataDir.open(tmp_path, ()))
    server.load()
    refused = 0
    for _ in range(500):
        try:
            await write(server, dice)
        except StatusError:
            refused += 1
    assert 50 < refused < 480, "the mix of good and bad objects is off"
    await server.stop()
