"""Find the place of a service of this cluster: the name of an ExternalName, a ready pod of its selector, or its endpoint slices.

Connect to it: to a pod through the agent of its node, because pods have their own network, and to other places as the machine does.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Any

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.kubelet import Kubelets
from elastic.local.apiserver.store import Store
from elastic.local.selectors import matches

DOMAIN = ".svc"
CONNECT_S = 5.0


class Unreachable(Exception):
    """The named service leads nowhere."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place that a service leads to."""

    host: str
    port: int
    pod: Json | None = None


class Routes:
    def __init__(self, store: Store, kubelets: Kubelets) -> None:
        self._store, self._kubelets = store, kubelets

    async def dial(self, host: str, port: int) -> socket.socket:
        """Connect to `SERVICE.NAMESPACE.svc` at one of its ports."""
        try:
            return await self.reach(self.find(host, port))
        except Unreachable as error:
            raise OSError(str(error)) from None

    async def reach(self, place: Place) -> socket.socket:
        if place.pod is not None and self._kubelets.address(place.pod) is not None:
            return await self._kubelets.dial(place.pod, place.port)
        return await asyncio.to_thread(socket.create_connection, (place.host, place.port), CONNECT_S)

    def find(self, host: str, port: int) -> Place:
        """Return the place behind `SERVICE.NAMESPACE.svc` at one of its ports. Raise Unreachable if it leads nowhere."""
        name, _, namespace = host.removesuffix(DOMAIN).partition(".")
        entry = self._store.get("services", namespace, name)
        if entry is None:
            raise Unreachable(f'service "{name}" not found')
        spec = entry.load().get("spec") or {}
        if spec.get("type") == "ExternalName":
            return Place(str(spec["externalName"]), port)
        declared = next((p for p in spec.get("ports") or () if p["port"] == port), None)
        if declared is None:
            raise Unreachable(f'no service port {port} found for service "{name}"')
        places = self._pods(namespace, spec["selector"], declared) if spec.get("selector") else self._slices(namespace, name, declared)
        if not places:
            raise Unreachable(f'no endpoints available for service "{name}"')
        return places[0]

    def _pods(self, namespace: str, selector: Json, port: Json) -> list[Place]:
        ready = [e.load() for e in self._store.entries("pods", namespace) if matches({"matchLabels": selector}, e.labels)]
        found = ((pod, _target(pod, port)) for pod in ready if _is_ready(pod))
        return [Place(pod["status"]["podIP"], number, pod) for pod, number in found if number]

    def has_slices(self, namespace: str, service: str) -> bool:
        entries = self._store.entries("endpointslices.discovery.k8s.io", namespace)
        return any(entry.labels.get("kubernetes.io/service-name") == service for entry in entries)

    def _slices(self, namespace: str, service: str, port: Json) -> list[Place]:
        found = []
        for entry in self._store.entries("endpointslices.discovery.k8s.io", namespace):
            if entry.labels.get("kubernetes.io/service-name") != service:
                continue
            piece = entry.load()
            numbers = [p["port"] for p in piece.get("ports") or () if p.get("port") and (p.get("name") or "") == (port.get("name") or "")]
            for endpoint in piece.get("endpoints") or ():
                if numbers and endpoint.get("addresses") and (endpoint.get("conditions") or {}).get("ready", True):
                    found.append(Place(str(endpoint["addresses"][0]), int(numbers[0])))
        return found


def _is_ready(pod: Json) -> bool:
    status = pod.get("status") or {}
    return bool(status.get("podIP")) and any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())


def _target(pod: Json, port: Json) -> int:
    """Return the number of a service's target port in a pod, or 0 if the pod has no port of this name."""
    wanted: Any = port.get("targetPort") or port["port"]
    return wanted if isinstance(wanted, int) else numbered(pod, wanted)


def numbered(pod: Json, name: str) -> int:
    """Return a port of the pod's containers by its name, or 0."""
    named = (p for c in pod["spec"].get("containers") or () for p in c.get("ports") or ())
    return next((int(p["containerPort"]) for p in named if p.get("name") == name), 0)
