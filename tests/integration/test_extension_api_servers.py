"""Servers of API services behind the laptop's API server, and behind a real one where there is one (KUBEBUILDER_ASSETS)."""

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
from aiohttp import web
from api_process import Client, running
from extension_server import API_SERVICES, VERSION, Extension
from laptop import until
from real_servers import ControlPlane, machine_address
from yarl import URL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


@dataclass(frozen=True)
class Server:
    url: str
    address: str
    """Where it finds what a test serves."""
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


@contextlib.asynccontextmanager
async def extended(server: Server, admin: Client, folder: Path) -> AsyncIterator[Extension]:
    """An extension that is available, and is taken away again."""
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


async def test_a_request_is_passed_on_with_who_asks_and_without_the_client_s_credentials(
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
        accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}

        async def merged() -> object:
            async with admin.session.get("/apis", headers=accept) as answer:
                found = {item["metadata"]["name"]: item["versions"] for item in (await answer.json(content_type=None))["items"]}
            return next((v for v in found.get(extension.group, ()) if v["freshness"] == "Current"), None)

        found = await until(merged, "the extension in the aggregated document")
        kind = {"group": "", "kind": "MetricValueList", "version": ""}
        subresource = {"subresource": "heat", "responseKind": kind, "verbs": ["get"]}
        parent = next(r for r in found["resources"] if r["resource"] == "pods")
        assert (parent["scope"], parent["subresources"]) == ("Namespaced", [subresource])


async def test_an_extension_that_has_gone_is_unavailable_and_all_else_is_served(server: Server, admin: Client, tmp_path: Path) -> None:
    async with extended(server, admin, tmp_path) as extension:
        extension.answer = lambda request: web.Response(status=500)
        endpoints = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/{extension.service}"
        label = {"metadata": {"labels": {"kubernetes.io/service-name": "nobody"}}}
        await admin.ask("PATCH", endpoints, label, media="application/merge-patch+json")

        async def reason() -> str:
            return str((await extension.condition(admin)).get("reason"))

        await until(lambda: _equals(reason, "EndpointsNotFound"), "no endpoints", within_s=60)
        async with admin.session.get(f"{extension.path}/namespaces/default/pods/one/heat") as answer:
            assert (answer.status, (await answer.text()).strip()) == (503, "service unavailable")
        back = {"metadata": {"labels": {"kubernetes.io/service-name": extension.service}}}
        await admin.ask("PATCH", endpoints, back, media="application/merge-patch+json")
        await until(lambda: _equals(reason, "FailedDiscoveryCheck"), "it answers 500", within_s=60)
        message = (await extension.condition(admin))["message"]
        assert message.startswith("failing or missing response from https://"), message
        assert message.endswith(": 500"), message
        status, _ = await admin.ask("GET", "/api/v1/namespaces/default/pods")
        assert status == 200


async def _equals(read: Callable[[], Awaitable[str]], wanted: str) -> bool:
    return await read() == wanted


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
