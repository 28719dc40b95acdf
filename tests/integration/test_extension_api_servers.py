"""Run servers of API services behind the laptop's API server, and behind a real one if there is one (KUBEBUILDER_ASSETS)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import WSServerHandshakeError, web
from api_process import CONFIG_MAPS, Client, config_map, running
from extension_server import API_SERVICES, VERSION, Extension
from laptop import until
from real_servers import ControlPlane, machine_address
from yarl import URL

from elastic.kube import connect
from elastic.local.agent.fleet import pods_cache
from elastic.local.controllers.budgets import DisruptionBudgets
from elastic.local.controllers.garbage import GarbageCollector
from elastic.local.controllers.namespaces import NamespaceDeletion
from elastic.local.identities import CONTROLLERS, acting_as

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
NAMESPACES = "/api/v1/namespaces"
DISCOVERY = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


@dataclass(frozen=True)
class Server:
    url: str
    address: str
    """The address of this machine at which the API server reaches a test's servers."""
    ca: Path
    token: str = ""
    certificate: Path | None = None

    def client(self, **headers: str) -> Client:
        client = Client(self.url, self.ca, ({"Authorization": f"Bearer {self.token}"} if self.token else {}) | headers)
        if self.certificate is not None:
            context = client.session.connector._ssl  # type: ignore[union-attr]
            assert isinstance(context, ssl.SSLContext)
            context.load_cert_chain(self.certificate, self.certificate.with_suffix(".key"))
        return client


@pytest.fixture(scope="module", params=["own", pytest.param("real", marks=pytest.mark.cluster)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "own":
        folder = tmp_path_factory.mktemp("aggregating")
        with running(folder) as own:
            yield Server(own.url, "127.0.0.1", folder / "ca.crt", token=own.token)
    else:
        plane: ControlPlane = request.getfixturevalue("real_plane")
        yield Server(plane.url, machine_address(), plane.folder / "ca.crt", certificate=plane.folder / "admin.crt")


@pytest_asyncio.fixture
async def admin(server: Server) -> AsyncIterator[Client]:
    async with server.client() as client:
        yield client


@pytest_asyncio.fixture
async def controllers(server: Server) -> AsyncIterator[None]:
    """Run the laptop's controllers if no real ones run. A controller that ends fails the test."""
    if server.certificate is not None:
        yield
        return
    async with connect(server.ca.parent / "kubeconfig") as admin, acting_as(admin, CONTROLLERS) as kube, asyncio.TaskGroup() as group:
        pods = pods_cache(kube)
        running = [pods, NamespaceDeletion(kube), GarbageCollector(kube), DisruptionBudgets(kube, pods)]
        tasks = [group.create_task(one.run()) for one in running]  # type: ignore[attr-defined]
        yield
        for task in tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def extended(server: Server, admin: Client, folder: Path) -> AsyncIterator[Extension]:
    """Register an extension, yield it once it is available, and remove it again."""
    extension = Extension(f"x{uuid.uuid4().hex[:8]}", server.address)
    _, found = await admin.ask("GET", AUTHENTICATION)
    client_ca = found["data"]["requestheader-client-ca-file"]
    async with extension.serving(folder, client_ca):
        await extension.register(admin)
        try:
            await until(lambda: passed(extension, admin), "available", within_s=60)
            yield extension
        finally:
            await admin.ask("DELETE", f"{API_SERVICES}/{extension.name}")


async def passed(extension: Extension, admin: Client) -> bool:
    condition = await extension.condition(admin)
    return (condition.get("status"), condition.get("reason"), condition.get("message")) == ("True", "Passed", "all checks passed")


async def test_a_request_is_passed_on_with_the_user_and_without_the_clients_credentials(
    server: Server, admin: Client, tmp_path: Path
) -> None:
    async with extended(server, admin, tmp_path) as extension:
        spoofed = {"Impersonate-User": "ann", "Impersonate-Group": "lab", "X-Remote-User": "root", "X-Remote-Group": "system:masters"}
        role = {"apiGroups": [extension.group], "resources": ["pods/heat"], "verbs": ["get"]}
        access = "/apis/rbac.authorization.k8s.io/v1"
        await admin.make(f"{access}/clusterroles", {"metadata": {"name": extension.service}, "rules": [role]})
        subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": extension.service}
        await admin.make(
            f"{access}/clusterrolebindings", {"metadata": {"name": extension.service}, "subjects": subjects, "roleRef": reference}
        )
        path = f"{extension.path}/namespaces/default/pods/%2A/heat?labelSelector=a%3Db"
        async with server.client(**spoofed) as ann:

            async def answered() -> dict[str, object] | None:
                async with ann.session.get(URL(server.url + path, encoded=True)) as answer:
                    return await answer.json() if answer.status == 200 else None

            told = await until(answered, "an answer for ann")
            asked = len(extension.asked)
            status, refused = await ann.ask("GET", f"{extension.path}/namespaces/default/pods/one/cold")
        assert told["X-Remote-User"] == "ann"
        assert set(told["groups"]) == {"lab", "system:authenticated"}
        assert told["Authorization"] is None
        assert told["path"].partition("?")[2] == "labelSelector=a%3Db"
        assert told["path"].partition("?")[0].endswith(("/pods/%2A/heat", "/pods/*/heat"))
        assert (status, refused["reason"]) == (403, "Forbidden")
        assert all(not request.path.endswith("/cold") for request in extension.asked[asked:]), "refused before it was passed on"


async def test_discovery_shows_what_the_extension_lists(server: Server, admin: Client, tmp_path: Path) -> None:
    async with extended(server, admin, tmp_path) as extension:
        _, groups = await admin.ask("GET", "/apis")
        version = {"groupVersion": f"{extension.group}/{VERSION}", "version": VERSION}
        assert groups["groups"][-1] == {"name": extension.group, "versions": [version], "preferredVersion": version}
        _, group = await admin.ask("GET", f"/apis/{extension.group}")
        assert (group["kind"], group["versions"]) == ("APIGroup", [version])
        _, listed = await admin.ask("GET", extension.path)
        assert listed == extension.resources()

        async def merged() -> object:
            async with admin.session.get("/apis", headers=DISCOVERY) as answer:
                found = {item["metadata"]["name"]: item["versions"] for item in (await answer.json(content_type=None))["items"]}
            return next((v for v in found.get(extension.group, ()) if v["freshness"] == "Current"), None)

        found = await until(merged, "the extension in the aggregated document")
        kind = {"group": "", "kind": "MetricValueList", "version": ""}
        subresource = {"subresource": "heat", "responseKind": kind, "verbs": ["get"]}
        parent = next(r for r in found["resources"] if r["resource"] == "pods")
        assert (parent["scope"], parent["subresources"]) == ("Namespaced", [subresource])


async def test_an_extension_may_compress_its_long_list(server: Server, admin: Client, tmp_path: Path) -> None:
    """Extensions made with Kubernetes' library compress more than 128 KiB if the client accepts it."""
    async with extended(server, admin, tmp_path) as extension:

        def compressed(request: web.Request) -> web.Response:
            answer = web.json_response(extension.resources())
            answer.enable_compression()
            return answer

        extension.answer = compressed
        asked = len(extension.asked)
        await extension.touch(admin)
        await until(lambda: len(extension.asked) >= asked + 2, "it is asked again", within_s=60)
        await until(lambda: _equals(lambda: freshness(extension, admin), "Current"), "it is discovered", within_s=60)


async def test_an_extension_that_has_gone_is_unavailable_and_all_else_is_served(server: Server, admin: Client, tmp_path: Path) -> None:
    async with extended(server, admin, tmp_path) as extension:
        extension.answer = lambda request: web.Response(status=500)
        endpoints = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/{extension.service}"
        label = {"metadata": {"labels": {"kubernetes.io/service-name": "nobody"}}}
        await admin.ask("PATCH", endpoints, label, media="application/merge-patch+json")

        await until(lambda: _equals(lambda: _reason(extension, admin), "EndpointsNotFound"), "no endpoints", within_s=60)
        async with admin.session.get(f"{extension.path}/namespaces/default/pods/one/heat") as answer:
            assert (answer.status, (await answer.text()).strip()) == (503, "service unavailable")
        back = {"metadata": {"labels": {"kubernetes.io/service-name": extension.service}}}
        await admin.ask("PATCH", endpoints, back, media="application/merge-patch+json")
        await until(lambda: _equals(lambda: _reason(extension, admin), "FailedDiscoveryCheck"), "it answers 500", within_s=60)
        message = (await extension.condition(admin))["message"]
        assert message.startswith("failing or missing response from https://"), message
        assert message.endswith(": 500"), message
        status, _ = await admin.ask("GET", "/api/v1/namespaces/default/pods")
        assert status == 200


async def _equals(read: Callable[[], Awaitable[str]], wanted: str) -> bool:
    return await read() == wanted


async def freshness(extension: Extension, admin: Client) -> str:
    async with admin.session.get("/apis", headers=DISCOVERY) as answer:
        items = (await answer.json(content_type=None))["items"]
    return next((str(i["versions"][0]["freshness"]) for i in items if i["metadata"]["name"] == extension.group), "")


async def going(admin: Client, name: str, kind: str) -> dict[str, str] | None:
    """Return this condition of a namespace that is being deleted, once it is true."""
    _, found = await admin.ask("GET", f"{NAMESPACES}/{name}")
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if isinstance(c, dict) and c["type"] == kind and c["status"] == "True"), None)


async def has_gone(admin: Client, path: str) -> bool:
    return (await admin.ask("GET", path))[0] == 404


async def is_collected(admin: Client) -> None:
    """Check that garbage collection still works."""
    owner = await admin.make(CONFIG_MAPS, config_map(f"o{uuid.uuid4().hex[:8]}"))
    dependent = config_map(f"d{uuid.uuid4().hex[:8]}")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    dependent["metadata"]["ownerReferences"] = [reference]
    await admin.make(CONFIG_MAPS, dependent)
    await admin.ask("DELETE", f"{CONFIG_MAPS}/{owner['metadata']['name']}")
    await until(lambda: has_gone(admin, f"{CONFIG_MAPS}/{dependent['metadata']['name']}"), "the dependent is collected", within_s=60)


@pytest.mark.parametrize("wrong", [{"verbs": 5}, 5], ids=str)
async def test_a_malformed_discovery_document_makes_only_its_group_stale(
    server: Server, admin: Client, controllers: None, tmp_path: Path, wrong: object
) -> None:
    """A malformed document ended the laptop's agents. Namespaces whose content cannot be known must wait, and all else must go on."""
    async with extended(server, admin, tmp_path) as extension:
        await until(lambda: _equals(lambda: freshness(extension, admin), "Current"), "it is discovered")
        well = extension.resources()
        entry = {**well["resources"][0], **wrong} if isinstance(wrong, dict) else wrong
        extension.answer = lambda request: web.json_response({**well, "resources": [*well["resources"], entry]})
        await extension.touch(admin)
        await until(lambda: _equals(lambda: freshness(extension, admin), "Stale"), "it is stale", within_s=90)
        assert await passed(extension, admin), "its server answers, which is all that the condition says"
        name = f"n{uuid.uuid4().hex[:8]}"
        await admin.make(NAMESPACES, {"metadata": {"name": name}})
        await admin.ask("DELETE", f"{NAMESPACES}/{name}")
        failed = await until(lambda: going(admin, name, "NamespaceDeletionDiscoveryFailure"), "the namespace waits", within_s=60)
        assert failed["reason"] == "DiscoveryFailed"
        assert f"{extension.group}/{VERSION}: stale GroupVersion discovery: {extension.group}/{VERSION}" in failed["message"]
        await is_collected(admin)
    await until(lambda: has_gone(admin, f"{NAMESPACES}/{name}"), "the namespace goes when the API service has gone", within_s=60)


@pytest.mark.parametrize("wrong", [{"items": [5]}, []], ids=str)
async def test_invalid_lists_and_watches_hold_up_only_the_deletion_of_namespaces(
    server: Server, admin: Client, controllers: None, tmp_path: Path, wrong: object
) -> None:
    async with extended(server, admin, tmp_path) as extension:
        verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        things = {"name": "things", "singularName": "thing", "namespaced": True, "kind": "Thing", "verbs": verbs}
        of_group = {"apiVersion": f"{extension.group}/{VERSION}", "kind": "ThingList", "metadata": {"resourceVersion": "1"}}
        listed: object = {**of_group, "items": []} | wrong if isinstance(wrong, dict) else wrong

        def answer(request: web.Request) -> web.Response:
            if request.path == extension.path:
                return web.json_response({**extension.resources(), "resources": [things]})
            if "watch" in request.query:
                return web.Response(
                    text='{"type": "ADDED", "object": 5}\n[]\n{"type": [1], "object": {}}\n', content_type="application/json"
                )
            return web.json_response(listed)

        extension.answer = answer
        await extension.touch(admin)

        async def shows_things() -> bool:
            async with admin.session.get("/apis", headers=DISCOVERY) as found:
                return '"thing"' in await found.text()

        await until(shows_things, "it is discovered", within_s=90)
        name = f"n{uuid.uuid4().hex[:8]}"
        await admin.make(NAMESPACES, {"metadata": {"name": name}})
        await admin.make(f"{NAMESPACES}/{name}/configmaps", config_map("one"))
        await until(lambda: extension.listed, "the garbage collector lists it", within_s=60)
        await admin.ask("DELETE", f"{NAMESPACES}/{name}")
        failed = await until(lambda: going(admin, name, "NamespaceDeletionContentFailure"), "the namespace waits", within_s=60)
        assert failed["reason"] == "ContentDeletionFailed"
        assert failed["message"].startswith("Failed to delete all resource types, 1 remaining: "), failed
        await until(lambda: has_gone(admin, f"{NAMESPACES}/{name}/configmaps/one"), "what others hold goes", within_s=60)
        await is_collected(admin)
        listed = {**of_group, "items": []}
        await until(lambda: has_gone(admin, f"{NAMESPACES}/{name}"), "the namespace goes once its content is known", within_s=90)


async def test_a_silent_and_an_endless_extension_cost_only_their_own_requests(server: Server, admin: Client, tmp_path: Path) -> None:
    async with extended(server, admin, tmp_path) as extension:
        well = extension.answer

        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(bytes(1 << 16))
            except (ConnectionError, asyncio.CancelledError):
                extension.cut += 1
                raise

        async def by_name(request: web.Request) -> web.StreamResponse:
            if "silent" in request.path:
                await asyncio.sleep(600)
            if "endless" in request.path:
                return await endless(request)
            return well(request)  # type: ignore[no-any-return]

        extension.answer = by_name
        one = f"{extension.path}/namespaces/default/pods"
        silent = [asyncio.create_task(admin.ask("GET", f"{one}/silent-{n}/heat")) for n in range(20)]
        async with admin.session.get(f"{one}/endless/heat") as answer:
            for _ in range(50):
                assert await answer.content.readexactly(1 << 16)
            async with asyncio.timeout(20):
                status, _ = await admin.ask("GET", "/api/v1/namespaces/default/pods")
                assert status == 200
                status, told = await admin.ask("GET", f"{one}/well/heat")
                assert (status, told["path"]) == (200, f"{one}/well/heat")
            answer.close()
        await until(lambda: extension.cut, "the endless answer ends when its client goes")
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_an_extension_that_says_continue_without_end_costs_only_its_own_requests(
    server: Server, admin: Client, tmp_path: Path
) -> None:
    """The API server read these answers and answered nobody. Others got no TLS handshake, and nodes were declared unreachable."""
    if server.certificate is not None:
        pytest.skip("a real one passes all of them on to its client")
    async with extended(server, admin, tmp_path) as extension:
        well = extension.answer

        async def endless(request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/well/heat"):
                return well(request)  # type: ignore[no-any-return]
            assert request.transport is not None
            while not request.transport.is_closing():
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
                await asyncio.sleep(0)
            return web.Response()

        extension.answer = endless
        pods = f"{extension.path}/namespaces/default/pods"
        status, words = await _plain(admin, f"{pods}/one/heat")
        assert status in (502, 503)
        assert "informational" in words
        refused = await asyncio.gather(*(_plain(admin, f"{pods}/one/heat") for _ in range(20)))
        assert {status for status, _ in refused} <= {502, 503}
        assert (await admin.ask("GET", f"{pods}/well/heat"))[0] == 200
        await extension.touch(admin)
        await until(lambda: _equals(lambda: _reason(extension, admin), "FailedDiscoveryCheck"), "it is not available", within_s=60)
        assert "informational" in (await extension.condition(admin))["message"]
        assert (await admin.ask("GET", "/api/v1/namespaces/default/pods"))[0] == 200


async def _plain(admin: Client, path: str) -> tuple[int, str]:
    async with admin.session.get(path) as answer:
        return answer.status, await answer.text()


async def _reason(extension: Extension, admin: Client) -> str:
    return str((await extension.condition(admin)).get("reason"))


async def test_another_protocol_is_carried_both_ways_with_the_user(server: Server, admin: Client, tmp_path: Path) -> None:
    async with extended(server, admin, tmp_path) as extension:
        well = extension.answer

        async def echoing(request: web.Request) -> web.StreamResponse:
            if not request.path.endswith("/heat"):
                return well(request)  # type: ignore[no-any-return]
            if "refused" in request.path:
                return web.json_response({"kind": "Status", "message": "not here"}, status=418)
            socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
            await socket.prepare(request)
            await socket.send_json({key: request.headers.get(key) for key in ("X-Remote-User", "Authorization")})
            async for message in socket:
                await socket.send_str(message.data * 2)
            return socket

        extension.answer = echoing
        pods = f"{extension.path}/namespaces/default/pods"
        async with admin.session.ws_connect(f"{pods}/one/heat?a=b", protocols=("v4.channel.k8s.io",)) as socket:
            told = await socket.receive_json()
            assert (bool(told["X-Remote-User"]), told["Authorization"]) == (True, None)
            assert socket.protocol == "v4.channel.k8s.io"
            for text in ("x", "y" * 70_000):
                await socket.send_str(text)
                assert (await socket.receive_str()) == text * 2
        with pytest.raises(WSServerHandshakeError) as refused:
            await admin.session.ws_connect(f"{pods}/refused/heat")
        assert refused.value.status == 418


async def test_an_extension_is_held_to_the_ca_of_its_api_service(server: Server, admin: Client, tmp_path: Path) -> None:
    extension, other = (Extension(f"x{uuid.uuid4().hex[:8]}", server.address) for _ in range(2))
    _, found = await admin.ask("GET", AUTHENTICATION)
    async with extension.serving(tmp_path, found["data"]["requestheader-client-ca-file"]):
        await extension.register(admin, caBundle=other.ca_bundle)
        try:
            condition = await until(lambda: extension.condition(admin), "a condition", within_s=60)
            assert (condition["status"], condition["reason"]) == ("False", "FailedDiscoveryCheck")
            assert "certificate" in condition["message"]
            assert not extension.asked
        finally:
            await admin.ask("DELETE", f"{API_SERVICES}/{extension.name}")
