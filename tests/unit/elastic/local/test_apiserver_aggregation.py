"""Check API services: their discovery, the user's headers for their servers, and the wait of a deleted namespace for them."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from arbitrary_json import anything, places, planted
from hypothesis import given
from hypothesis import strategies as st
from passing_api import THINGS, passing_to, remote
from served_api import served

from elastic.local.apiserver import discovery, kinds
from elastic.local.apiserver.aggregation import listed, passing
from elastic.local.apiserver.aggregation.apiservices import APIServices
from elastic.local.apiserver.aggregation.asking import MISSED, Asking, about, is_about_user
from elastic.local.apiserver.aggregation.listed import Listed, Malformed
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.resources import Registry
from elastic.local.controllers.discovery import read
from elastic.local.controllers.namespaces import Waiting, conditions


def registry() -> Registry:
    made = Registry()
    made.add(*kinds.built_in())
    return made


def test_groups_of_others_come_after_ours_by_priority_and_name() -> None:
    remotes = [remote("b.example"), remote("a.example"), remote("z.example", priority=2000), remote("a.example", "v2")]
    names = [g["name"] for g in discovery.groups(registry(), remotes)["groups"]]
    assert names[0] == "apiregistration.k8s.io"
    assert names[-3:] == ["z.example", "a.example", "b.example"]
    group = discovery.group(registry(), remotes, "a.example")
    assert group is not None
    assert [v["version"] for v in group["versions"]] == ["v2", "v1"]


def test_a_server_that_does_not_say_what_it_serves_is_shown_as_stale() -> None:
    found = (Listed("pods/heat", namespaced=True, kind="MetricValueList", verbs=["get"]), Listed("things", verbs=["list"]))
    remotes = [remote("a.example", resources=found), remote("b.example", resources=None)]
    items = {i["metadata"]["name"]: i["versions"] for i in discovery.aggregated(registry(), remotes, core=False)["items"]}
    (known,), (silent,) = items["a.example"], items["b.example"]
    assert known["freshness"] == "Current"
    assert [r["resource"] for r in known["resources"]] == ["pods", "things"]
    assert known["resources"][0]["subresources"][0]["subresource"] == "heat"
    assert silent == {"version": "v1", "resources": [], "freshness": "Stale"}


WELL = {"name": "pods/heat", "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"], "shortNames": ["h"]}
LIST = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "a.example/v1", "resources": [WELL, {**WELL, "name": "heats"}]}


def test_every_fault_of_a_discovery_document_is_named_with_its_place() -> None:
    resources = [WELL, 5, {**WELL, "verbs": 5}, {**WELL, "kind": [1]}, {**WELL, "name": "../pods"}, {"kind": "X"}, None]
    with pytest.raises(Malformed) as malformed:
        listed.read(json.dumps({**LIST, "resources": resources}).encode())
    assert str(malformed.value) == (
        "resources[1]: Expected `object`, got `int`; "
        "resources[2]: Expected `array | null`, got `int` - at `$.verbs`; "
        "resources[3]: Expected `str | null`, got `array` - at `$.kind`; "
        "resources[4]: name is '../pods', which cannot be a part of a path; "
        "resources[5]: Object missing required field `name`; and 1 more"
    )


def test_a_server_that_serves_nothing_may_write_null() -> None:
    assert listed.read(b'{"kind": "APIResourceList", "resources": null}') == ()
    with pytest.raises(Malformed, match="expected an APIResourceList"):
        listed.read(b"{}")


@given(data=st.data())
def test_another_servers_discovery_document_is_refused_or_can_be_served(data: st.DataObject) -> None:
    """The server may send any JSON. The agents read the discovery that we make of it, and invalid JSON ended them."""
    document = planted(LIST, data.draw(st.sampled_from(places(LIST))), data.draw(anything))
    try:
        found = listed.read(json.dumps(document).encode())
    except Malformed:
        return
    served = discovery.aggregated(registry(), [remote("a.example", resources=found)], core=False)
    kinds = read([orjson.loads(orjson.dumps(served))])
    assert not kinds.failed
    assert ("apps", "Deployment") in kinds.every


def test_the_user_is_told_in_headers_that_no_client_can_write() -> None:
    user = User("ann", ("lab", "all"), "u-1", {"scopes/x": ("a b",)})
    told = about(user)
    assert told == [
        ("X-Remote-User", "ann"),
        ("X-Remote-Uid", "u-1"),
        ("X-Remote-Group", "lab"),
        ("X-Remote-Group", "all"),
        ("X-Remote-Extra-scopes%2Fx", "a b"),
    ]
    assert all(is_about_user(name) for name, _ in told)
    assert not is_about_user("X-Remote-Control")


@pytest.mark.parametrize(
    ("name", "spec", "field"),
    [
        ("x", {}, "metadata.name"),
        ("v1.g.example", {"groupPriorityMinimum": 20001}, "spec.groupPriorityMinimum"),
        ("v1.g.example", {"versionPriority": 0}, "spec.versionPriority"),
        ("v1.g.example", {"service": {"name": "s", "namespace": ""}}, "spec.service.namespace"),
        ("v1.g.example", {"service": {"name": "s", "namespace": "n", "port": 70000}}, "spec.service.port"),
        ("v1.g.example", {"caBundle": "YQ=="}, "spec.caBundle"),
    ],
)
def test_a_wrong_api_service_is_refused_with_the_field(name: str, spec: Json, field: str) -> None:
    whole = {"group": "g.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10, **spec}
    causes = APIServices().validate({"metadata": {"name": name}, "spec": whole})
    assert [cause.field for cause in causes] == [field]


def test_a_namespace_waits_for_groups_whose_server_is_silent() -> None:
    told = {
        c["type"]: c
        for c in conditions(
            Waiting(undiscovered={"a.example/v1": "stale GroupVersion discovery: a.example/v1"}), since="2026-01-01T00:00:00Z"
        )
    }
    failed = told["NamespaceDeletionDiscoveryFailure"]
    assert (failed["status"], failed["reason"]) == ("True", "DiscoveryFailed")
    assert failed["message"] == (
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: "
        "a.example/v1: stale GroupVersion discovery: a.example/v1"
    )
    assert (told["NamespaceContentRemaining"]["status"], told["NamespaceContentRemaining"]["reason"]) == ("False", "ContentRemoved")


@pytest.mark.parametrize(("query", "subresource"), [("?watch=true", ""), ("?watch=1&timeoutSeconds=5", ""), ("?follow=true", "/log")])
async def test_a_long_answer_that_is_silent_is_not_cut_once_it_has_begun(
    monkeypatch: pytest.MonkeyPatch, query: str, subresource: str
) -> None:
    """Watches were cut after a minute. A watch of objects that seldom change began again and again."""
    monkeypatch.setattr(passing, "REQUEST_S", 0.2)
    say, path = asyncio.Event(), f"/apis/a.example/v1/namespaces/n/things{'/t' if subresource else ''}{subresource}"

    async def extension(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if "begin" in request.query:
            await response.prepare(request)
        await say.wait()
        await response.prepare(request)
        await response.write(b"{}\n")
        return response

    async with served(extension) as behind, passing_to(behind.access.server) as (client, known):
        async with client.get(f"{path}{query}&begin=1") as answer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.8):
                    await answer.content.readexactly(1)
            async with client.get(f"{path}{query}") as never_begun:
                assert never_begun.status == 503
            async with client.get("/apis/a.example/v1/namespaces/n/things?begin=1") as short:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await short.read()
            say.set()
            assert await answer.content.readexactly(3) == b"{}\n"
        assert not known.places.held


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize("body", [b"{}", b"x" * 300_000], ids=len)
async def test_a_request_that_offers_another_protocol_keeps_its_body(method: str, body: bytes) -> None:
    """Clients that prefer HTTP/2 offer it like this. The body was dropped silently."""
    heard: list[tuple[str, bytes]] = []

    async def extension(request: web.Request) -> web.StreamResponse:
        heard.append((request.headers.get("Upgrade", ""), await request.read()))
        return web.Response(status=201)

    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    async with (
        served(extension) as behind,
        asyncio.timeout(20),
        passing_to(behind.access.server) as (client, _),
        client.request(method, THINGS, data=body, headers=offer) as answer,
    ):
        assert answer.status == 201
    assert heard == [("", body)]


async def test_a_request_for_no_protocol_in_particular_is_plain() -> None:
    async def extension(request: web.Request) -> web.StreamResponse:
        return web.Response(text="well")

    async with (
        served(extension) as behind,
        asyncio.timeout(20),
        passing_to(behind.access.server) as (client, _),
        client.get(THINGS, headers={"Connection": "Upgrade"}) as answer,
    ):
        assert (answer.status, await answer.text()) == (200, "well")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 418 No\r\nContent-Type: text/plain\nX: y\r\nContent-Length: 0",
        b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: tcp\nX: y",
        b"HTTP/1.1 99999 No\r\nContent-Length: 0",
    ],
)
async def test_an_answer_to_an_upgrade_that_is_no_http_is_an_error_with_words(head: bytes) -> None:
    """The client got an empty reply."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await writer.drain()
        writer.close()

    behind = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with (
        behind,
        asyncio.timeout(20),
        passing_to("http://{}:{}".format(*behind.sockets[0].getsockname())) as (client, _),
        client.get(THINGS, headers={"Connection": "Upgrade", "Upgrade": "tcp"}) as answer,
    ):
        assert (answer.status, await answer.text()) == (503, "error trying to reach service: the answer is no HTTP\n")


@pytest.mark.parametrize("bundle", ["no base64", base64.b64encode(b"no certificate").decode()])
async def test_a_server_with_an_invalid_ca_is_not_dialled(bundle: str) -> None:
    """The connection stayed open until it was collected as garbage."""
    dialled: list[str] = []

    async def dial(host: str, port: int) -> socket.socket:
        dialled.append(host)
        return socket.socket()

    routes: Any = SimpleNamespace(dial=dial)
    with pytest.raises(MISSED):
        await Asking(routes, Path("none"), Path("none")).connection(remote("a.example", ca_bundle=bundle))
    assert dialled == []
