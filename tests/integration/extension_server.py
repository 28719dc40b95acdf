"""Run a server of an API service for tests. It tells which user asked it, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from api_process import Client

from elastic import certificates
from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.served import served

Json = dict[str, Any]
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
VERSION = "v1beta1"


class Extension:
    """A server of the group `GROUP.example` behind a service of the namespace default."""

    def __init__(self, group: str, address: str) -> None:
        self.group, self.address, self.port = f"{group}.example", address, 0
        self.service = group
        self.asked: list[web.Request] = []
        self.answer: Callable[[web.Request], Any] = self._describe
        self.cut = 0
        """Number of answers whose client left before their end."""
        self._ca = certificates.make_ca(f"{group}-ca")

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{VERSION}"

    @property
    def name(self) -> str:
        return f"{VERSION}.{self.group}"

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self._ca.certificate).decode()

    @contextlib.asynccontextmanager
    async def serving(self, folder: Path, client_ca: str) -> AsyncIterator[None]:
        """Serve clients that have a certificate of `client_ca`."""
        pair = certificates.issue(self._ca, self.service, names=(f"{self.service}.default.svc",))
        (folder / f"{self.service}.pem").write_bytes(pair.certificate + b"\n" + pair.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{self.service}.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca)
        listener = Listener(Bounds(most=64, strangers=64, of_one_address=64))
        app = web.Application(middlewares=[listener.middleware])
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        opened = socket.create_server((self.address, self.port))
        self.port = opened.getsockname()[1]
        async with served(runner, listener, opened, tls=context, backlog=64):
            yield

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/apis", f"/apis/{self.group}"):
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        self.asked.append(request)
        found = self.answer(request)
        answer = await found if asyncio.iscoroutine(found) else found
        assert isinstance(answer, web.StreamResponse)
        return answer

    def _describe(self, request: web.Request) -> web.Response:
        if request.path == self.path:
            return web.json_response(self.resources())
        told = {"path": request.raw_path, "groups": request.headers.getall("X-Remote-Group", [])}
        return web.json_response(told | {key: request.headers.get(key) for key in ("X-Remote-User", "Authorization")})

    def resources(self) -> Json:
        entry = {"name": "pods/heat", "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{self.group}/{VERSION}", "resources": [entry]}

    async def register(self, admin: Client, **spec: Any) -> None:
        """Create a service without a selector, the address behind it, and the API service."""
        metadata = {"name": self.service}
        ports = [{"name": "https", "port": 443, "targetPort": self.port}]
        await admin.make("/api/v1/namespaces/default/services", {"metadata": metadata, "spec": {"ports": ports}})
        piece = {
            "metadata": {"name": self.service, "labels": {"kubernetes.io/service-name": self.service}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": self.port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
        }
        await admin.make("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", piece)
        service = {"name": self.service, "namespace": "default"}
        wanted = {"group": self.group, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 10, "service": service}
        wanted |= {"caBundle": self.ca_bundle, **spec}
        await admin.make(API_SERVICES, {"metadata": {"name": self.name}, "spec": wanted})

    @property
    def listed(self) -> bool:
        """Return whether a client asked for more than the server serves."""
        return any(request.path.startswith(f"{self.path}/") for request in self.asked)

    async def touch(self, admin: Client) -> None:
        """Change its API service, so that the API server asks it again soon."""
        spec = {"versionPriority": 11}
        await admin.ask("PATCH", f"{API_SERVICES}/{self.name}", {"spec": spec}, media="application/merge-patch+json")

    async def condition(self, admin: Client) -> Json:
        _, obj = await admin.ask("GET", f"{API_SERVICES}/{self.name}")
        found: list[Json] = (obj.get("status") or {}).get("conditions") or []
        return found[0] if found else {}
