"""Requests that a careless or hostile client sends, and what must come of them: nothing is lost, nothing grows without end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from elastic.local.apiserver.calls import Call, User
from elastic.local.apiserver.datadir import DataDir
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.patches import json_patch
from elastic.local.apiserver.server import ApiServer

ADMIN = User("admin", ("system:masters",))
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
APPLY, JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
CONFIG_MAP = {"metadata": {"name": "one"}, "data": {"a": "b"}}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
DEPLOYMENT = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}}


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    started = ApiServer(DataDir.open(tmp_path, ()))
    started.load()
    yield started
    await started.stop()


def call(
    server: ApiServer, verb: str, body: Any, *, kind: str = "v1 ConfigMap", name: str = "", media: str = "application/json", **query: str
) -> Call:
    version, _, word = kind.partition(" ")
    group, _, number = version.rpartition("/")
    found = server.registry.by_kind(group, number, word)
    assert found is not None
    sent = b"" if body is None else json.dumps(body).encode()
    return Call(verb, found, "default", name, "", query, ADMIN, body=sent, media=media, agent="test/1")


async def refused(server: ApiServer, verb: str, body: Any, **given: Any) -> tuple[int, str]:
    act = {"create": server.writes.create, "update": server.writes.update, "patch": server.writes.patch, "delete": server.writes.delete}
    with pytest.raises(StatusError) as error:
        await act[verb](call(server, verb, body, **given))
    return error.value.code, error.value.message


def present(server: ApiServer) -> dict[str, Any]:
    entry = server.store.get("configmaps", "default", "one")
    assert entry is not None
    found: dict[str, Any] = entry.load()["data"]
    return found


async def test_a_delete_that_names_an_unknown_dry_run_deletes_nothing(server: ApiServer) -> None:
    await server.writes.create(call(server, "create", CONFIG_MAP))
    expected = (422, 'DeleteOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["x"]: supported values: "All"')
    assert await refused(server, "delete", {"dryRun": ["x"]}, name="one") == expected
    assert await refused(server, "delete", None, name="one", dryRun="x") == expected
    assert present(server) == {"a": "b"}


async def test_a_patch_that_takes_the_name_away_is_refused(server: ApiServer) -> None:
    await server.writes.create(call(server, "create", CONFIG_MAP))
    words = "the name of the object (one based on URL) was undeterminable: name must be provided"
    for media, patch in ((STRATEGIC, {"$patch": "delete"}), (MERGE, {"metadata": {"name": None}}), (MERGE, {"metadata": None})):
        assert await refused(server, "patch", patch, name="one", media=media) == (400, words)
    assert (await refused(server, "patch", {"data": {"$patch": "bogus"}}, name="one", media=STRATEGIC))[0] == 500
    assert present(server) == {"a": "b"}


async def test_an_applied_object_that_is_new_must_say_its_name(server: ApiServer) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
    assert (await refused(server, "patch", body, name="one", media=APPLY, fieldManager="me"))[0] == 400
    await server.writes.create(call(server, "create", CONFIG_MAP))
    await server.writes.patch(call(server, "patch", body, name="one", media=APPLY, fieldManager="me"))


async def test_objects_have_a_largest_size_however_they_grow(server: ApiServer) -> None:
    big = {"metadata": {"name": "one"}, "data": {"a": "x" * (1 << 20), "b": "y"}}
    assert await refused(server, "create", big) == (422, 'ConfigMap "one" is invalid: []: Too long: may not be more than 1048576 bytes')
    role = {"metadata": {"name": "one"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["x" * (2 << 20)]}]}
    code, words = await refused(server, "create", role, kind="rbac.authorization.k8s.io/v1 Role")
    assert (code, "at most 1572864 can be stored" in words) == (413, True)


def test_copies_of_copies_do_not_fill_the_memory() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{i}"} for i in range(64)]
    with pytest.raises(StatusError, match="its copies exceed") as error:
        json_patch({"a": {"b": "x" * 100}}, doubling)
    assert error.value.code == 413


@pytest.mark.parametrize(("verb", "media"), [("create", "application/json"), ("patch", APPLY)])
async def test_a_kind_from_which_nothing_makes_pods_is_refused(server: ApiServer, verb: str, media: str) -> None:
    """`kubectl create deployment` said "created", and no pod ever came."""
    kind, name = "apps/v1 Deployment", "web" if verb == "patch" else ""
    body = DEPLOYMENT | {"apiVersion": "apps/v1", "kind": "Deployment"}
    options = {"fieldManager": "me"} if verb == "patch" else {}
    code, words = await refused(server, verb, body, kind=kind, name=name, media=media, **options)
    assert (code, words) == (
        403,
        'deployments.apps "web" is forbidden: no controller of this cluster makes pods from deployments. '
        "Create a Pod or a training job, or use a cluster that runs them",
    )


async def test_a_binding_refers_to_a_role_and_a_review_to_somebody(server: ApiServer) -> None:
    body = {"metadata": {"name": "x"}, "roleRef": {"kind": "Bogus", "name": "r"}}
    code, words = await refused(server, "create", body, kind="rbac.authorization.k8s.io/v1 RoleBinding")
    assert (code, 'roleRef.kind: Unsupported value: "Bogus": supported values: "Role", "ClusterRole"' in words) == (422, True)


@pytest.mark.parametrize(
    ("volume", "where", "words"),
    [
        ({"configMap": {"name": "c", "items": [{"key": "k", "path": "/tmp/x"}]}}, "configMap.items[0].path", "must be a relative path"),
        ({"secret": {"secretName": "s", "items": [{"key": "k", "path": "a/../b"}]}}, "secret.items[0].path", "must not contain '..'"),
        ({"downwardAPI": {"items": [{"path": "..data"}]}}, "downwardAPI.items[0].path", "must not start with '..'"),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "../t"}}]}},
            "projected.sources[0].serviceAccountToken.path",
            "must not contain '..'",
        ),
        ({"hostPath": {"path": "/data/../etc"}}, "hostPath.path", "must not contain '..'"),
    ],
)
async def test_a_volume_whose_paths_lead_out_of_it_is_refused(server: ApiServer, volume: Any, where: str, words: str) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", **volume}]}
    code, message = await refused(server, "create", {"metadata": {"name": "x"}, "spec": spec}, kind="v1 Pod")
    assert (code, f"spec.volumes[0].{where}: Invalid value: " in message, words in message) == (422, True, True)


@pytest.mark.parametrize(("part", "words"), [("/etc", "must be a relative path"), ("../..", "must not contain '..'")])
async def test_a_part_of_a_volume_that_leads_out_of_it_is_refused(server: ApiServer, part: str, words: str) -> None:
    mounts = [{"name": "v", "mountPath": "/a", "subPath": part}, {"name": "v", "mountPath": "/b", "subPathExpr": part}]
    spec = {"containers": [{"name": "c", "image": "i", "volumeMounts": mounts}], "volumes": [{"name": "v", "emptyDir": {}}]}
    code, message = await refused(server, "create", {"metadata": {"name": "x"}, "spec": spec}, kind="v1 Pod")
    assert code == 422
    for i, key in enumerate(("subPath", "subPathExpr")):
        assert f'spec.containers[0].volumeMounts[{i}].{key}: Invalid value: "{part}": {words}' in message
