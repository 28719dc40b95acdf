"""Check that an extension API server is trusted for its own objects only, so that its lists harm no other tenant."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import orjson
import pytest
from aiohttp import web
from served_api import refusal, served

from elastic.kube.resources import Object
from elastic.local.controllers import garbage
from elastic.local.controllers.garbage import GarbageCollector
from elastic.local.controllers.namespaces import NamespaceDeletion

THINGS = "/apis/evil.example/v1/things"
JOBS = "/apis/kubeflow.org/v1/pytorchjobs"
PODS = "/api/v1/pods"
NAMESPACES = "/api/v1/namespaces"


def a_group(name: str, plural: str, kind: str, *, namespaced: bool = True) -> Object:
    entry = {"resource": plural, "scope": "Namespaced" if namespaced else "Cluster", "responseKind": {"kind": kind}}
    return {
        "metadata": {"name": name},
        "versions": [{"version": "v1", "resources": [{**entry, "verbs": ["list", "watch", "delete"]}], "freshness": "Current"}],
    }


CORE, EXTENSION, KUBEFLOW = (
    a_group("", "pods", "Pod"),
    a_group("evil.example", "things", "Thing"),
    a_group("kubeflow.org", "pytorchjobs", "PyTorchJob"),
)


def an_object(name: str, namespace: str, *owners: Object, **metadata: object) -> Object:
    identity = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": {**identity, "ownerReferences": [*owners], **metadata}}


def a_reference(api_version: str, kind: str, name: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "blockOwnerDeletion": True}


OF_JOB, OF_NOBODY = a_reference("kubeflow.org/v1", "PyTorchJob", "job"), a_reference("evil.example/v1", "Thing", "nobody")


class Cluster:
    """An API server that lists the objects of `listed`, sends those of `shown` to watches, and has the single objects of `had`."""

    def __init__(self, *groups: Object) -> None:
        self.groups = groups
        self.listed: dict[str, list[Object]] = defaultdict(list)
        self.had: dict[str, Object] = {}
        self.shown: dict[str, asyncio.Queue[Object]] = defaultdict(asyncio.Queue)
        self.watched: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.written: list[tuple[str, str]] = []
        self.wrote: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.written.append((request.method, request.path))
            self.wrote[request.path].set()
            return web.json_response({})
        if request.path in ("/api", "/apis"):
            core = request.path == "/api"
            return web.json_response({"items": [group for group in self.groups if core == (not group["metadata"]["name"])]})
        if "watch" in request.query:
            return await self._watch(request)
        if request.path in self.had:
            return web.json_response(self.had[request.path])
        if request.path.endswith(("/job", "/nobody")):
            return refusal(404, "NotFound")
        collection = request.path.replace("/namespaces/going", "")
        return web.json_response({"items": self.listed[collection], "metadata": {"resourceVersion": "1"}})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watched[request.path].set()
        while True:
            event = {"type": "ADDED", "object": await self.shown[request.path].get()}
            await response.write(orjson.dumps(event) + b"\n")


@pytest.mark.parametrize("namespace", ["other", "victim"])
@pytest.mark.parametrize("finalizer", ["foregroundDeletion", "orphan"])
@pytest.mark.parametrize("is_seen", [True, False], ids=["owner-seen", "owner-not-seen"])
async def test_an_extensions_object_with_the_uid_of_another_harms_nothing_of_that_other(
    namespace: str, finalizer: str, is_seen: bool
) -> None:
    """Another tenant's pod was deleted, or lost its owner, because an extension wrote an object with the uid of the job."""
    cluster = Cluster(CORE, EXTENSION, KUBEFLOW)
    cluster.listed[JOBS] = [an_object("job", "victim")] if is_seen else []
    cluster.listed[PODS] = [an_object("p", "victim", OF_JOB)]
    spoof = an_object("job", namespace, deletionTimestamp="2026-01-01T00:00:00Z", finalizers=[finalizer])
    cluster.had["/apis/kubeflow.org/v1/namespaces/victim/pytorchjobs/job"] = an_object("job", "victim")
    cluster.had["/api/v1/namespaces/victim/pods/p"] = an_object("p", "victim", OF_JOB)
    cluster.had[f"/apis/evil.example/v1/namespaces/{namespace}/things/job"] = spoof
    async with served(cluster.answer) as kube, asyncio.timeout(20), asyncio.TaskGroup() as group:
        collecting = group.create_task(GarbageCollector(kube).run())
        for collection in (JOBS, PODS, THINGS):
            await cluster.watched[collection].wait()
        cluster.shown[THINGS].put_nowait(spoof)
        # Each of these objects has no owner. Its deletion tells that all changes before it are handled.
        for name in ("one", "two", "three"):
            cluster.shown[PODS].put_nowait(an_object("p", "victim", OF_JOB, resourceVersion=name))
            cluster.shown[THINGS].put_nowait(an_object(name, "other", OF_NOBODY))
            await cluster.wrote[f"/apis/evil.example/v1/namespaces/other/things/{name}"].wait()
        collecting.cancel()
    assert [path for _, path in cluster.written if "/things/" not in path] == []
    assert ("PATCH", f"/apis/evil.example/v1/namespaces/{namespace}/things/job") in cluster.written


async def test_an_object_without_a_namespace_cannot_have_an_owner_in_one(caplog: pytest.LogCaptureFixture) -> None:
    """Its owner cannot be asked for, so it stays. The collector tried again each second without end."""
    cluster = Cluster(a_group("evil.example", "things", "Thing", namespaced=False), KUBEFLOW)
    async with served(cluster.answer) as kube, asyncio.timeout(20), asyncio.TaskGroup() as group:
        collecting = group.create_task(GarbageCollector(kube).run())
        for collection in (JOBS, THINGS):
            await cluster.watched[collection].wait()
        cluster.shown[THINGS].put_nowait(an_object("stays", "", OF_JOB))
        cluster.shown[THINGS].put_nowait(an_object("goes", "", OF_NOBODY))
        await cluster.wrote[f"{THINGS}/goes"].wait()
        collecting.cancel()
    assert cluster.written == [("DELETE", f"{THINGS}/goes")]
    assert [record.message for record in caplog.records if record.name == garbage.__name__] == []


async def test_a_list_of_another_namespaces_objects_says_nothing_of_this_one() -> None:
    cluster = Cluster(EXTENSION)
    going = {"metadata": {"name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"finalizers": ["kubernetes"]}}
    cluster.listed[NAMESPACES] = [going]
    cluster.listed[THINGS] = [an_object("one", "victim")]
    async with served(cluster.answer) as kube, asyncio.timeout(20), asyncio.TaskGroup() as group:
        emptying = group.create_task(NamespaceDeletion(kube).run())
        await cluster.wrote[f"{NAMESPACES}/going/status"].wait()
        emptying.cancel()
    assert {path for _, path in cluster.written} == {f"{NAMESPACES}/going/status"}
