"""Where an admission webhook is reached, a URL or a service of the cluster, and what it answers to one review.

A service leads straight to where it points: to the name of an ExternalName, to the ready pods of its selector, else to its endpoint
slices. The connection is held to the name `SERVICE.NAMESPACE.svc` and the webhook's CA, as a real server does it.
"""

from __future__ import annotations

import base64
import socket
import ssl
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.store import Store
from elastic.local.selectors import matches

MAX_ANSWER = 3 << 20
_DOMAIN = ".svc"


class Unreachable(Exception):
    """The service that a webhook names leads nowhere."""


def url_of(client: Json) -> str:
    """The address that is asked, as messages show it."""
    service = client.get("service")
    if not service:
        return str(client.get("url", ""))
    path = (service.get("path") or "").removeprefix("/")
    return f"https://{service['name']}.{service['namespace']}{_DOMAIN}:{service.get('port', 443)}/{path}"


class Targets:
    def __init__(self, store: Store) -> None:
        self._services = Services(store)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, client: Json, review: Json, *, seconds: int) -> Json:
        """The response to a review; raises where there is none that could be understood."""
        url = url_of(client)
        if client.get("service"):
            self._services.find(urlsplit(url).hostname or "", urlsplit(url).port or 443)
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=_Resolver(self._services), use_dns_cache=False)
            self._session = aiohttp.ClientSession(connector=connector)
        async with self._session.post(
            url,
            params={"timeout": f"{seconds}s"},
            data=orjson.dumps(review),
            headers={"Content-Type": "application/json"},
            ssl=_trusting(client.get("caBundle", "")),
            timeout=aiohttp.ClientTimeout(total=seconds),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise ValueError(f"the webhook answered {answer.status}")
            return _response(await _bounded(answer), review["request"]["uid"])


@lru_cache(maxsize=32)
def _trusting(ca_bundle: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(ca_bundle).decode() if ca_bundle else None)


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise ValueError(f"the webhook's answer is longer than {MAX_ANSWER} bytes")
    return bytes(body)


def _response(body: bytes, uid: str) -> Json:
    read = orjson.loads(body)
    if not isinstance(read, dict) or (read.get("apiVersion"), read.get("kind")) != ("admission.k8s.io/v1", "AdmissionReview"):
        found = f"{read.get('apiVersion', '')}, Kind={read.get('kind', '')}" if isinstance(read, dict) else "no object"
        raise ValueError(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {found}")
    response = read.get("response")
    if not isinstance(response, dict):
        raise ValueError("webhook response was absent")
    if response.get("uid") != uid:
        raise ValueError(f"expected response.uid={uid!r}, got {response.get('uid', '')!r}".replace("'", '"'))
    return response


class Services:
    """What the services of this cluster lead to."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, host: str, port: int) -> tuple[str, int]:
        """Host and port behind `SERVICE.NAMESPACE.svc` at one of its ports."""
        name, _, namespace = host.removesuffix(_DOMAIN).partition(".")
        entry = self._store.get("services", namespace, name)
        if entry is None:
            raise Unreachable(f'service "{name}" not found')
        spec = entry.load().get("spec") or {}
        declared = next((p for p in spec.get("ports") or () if p["port"] == port), None)
        if declared is None:
            raise Unreachable(f'no service port {port} found for service "{name}"')
        if spec.get("type") == "ExternalName":
            return str(spec["externalName"]), port
        places = self._pods(namespace, spec["selector"], declared) if spec.get("selector") else self._slices(namespace, name, declared)
        if not places:
            raise Unreachable(f'no endpoints available for service "{name}"')
        return places[0]

    def _pods(self, namespace: str, selector: Json, port: Json) -> list[tuple[str, int]]:
        ready = [e.load() for e in self._store.entries("pods", namespace) if matches({"matchLabels": selector}, e.labels)]
        found = ((pod, _target(pod, port)) for pod in ready if _is_ready(pod))
        return [(pod["status"]["podIP"], number) for pod, number in found if number]

    def _slices(self, namespace: str, service: str, port: Json) -> list[tuple[str, int]]:
        found = []
        for entry in self._store.entries("endpointslices.discovery.k8s.io", namespace):
            if entry.labels.get("kubernetes.io/service-name") != service:
                continue
            piece = entry.load()
            numbers = [p["port"] for p in piece.get("ports") or () if p.get("port") and (p.get("name") or "") == (port.get("name") or "")]
            for endpoint in piece.get("endpoints") or ():
                if numbers and endpoint.get("addresses") and (endpoint.get("conditions") or {}).get("ready", True):
                    found.append((str(endpoint["addresses"][0]), int(numbers[0])))
        return found


def _is_ready(pod: Json) -> bool:
    status = pod.get("status") or {}
    return bool(status.get("podIP")) and any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())


def _target(pod: Json, port: Json) -> int:
    """The number of a service's target port in a pod; 0 where the pod has no port of that name."""
    wanted: Any = port.get("targetPort") or port["port"]
    if isinstance(wanted, int):
        return wanted
    named = (p for c in pod["spec"].get("containers") or () for p in c.get("ports") or ())
    return next((int(p["containerPort"]) for p in named if p.get("name") == wanted), 0)


class _Resolver(AbstractResolver):
    """Names of services as this cluster knows them, all others as the machine does."""

    def __init__(self, services: Services) -> None:
        self._services, self._machine = services, ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        if not host.endswith(_DOMAIN):
            return await self._machine.resolve(host, port, family)
        try:
            place, number = self._services.find(host, port)
        except Unreachable as e:
            raise OSError(str(e)) from None
        return await self._machine.resolve(place, number, family)

    async def close(self) -> None:
        await self._machine.close()
