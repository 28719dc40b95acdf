"""Prepare a cluster for tests of the two metrics groups' availability.

The functions create the objects of an installation and the endpoints of its service. They also tell whether the groups are discovered,
and whether a namespace can still be deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_servers import ControlPlane, machine_address

from elastic.api import KINDS
from elastic.api.crd import crd
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    API_SERVICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    ENDPOINT_SLICES,
    HORIZONTAL_POD_AUTOSCALERS,
    NAMESPACES,
    PODS,
    SERVICES,
    Object,
    Resource,
)
from elastic.local import LocalCluster
from elastic.runtime.cert_rotation import CertificateName
from elastic_training.autoscale.serving.answers import VERSIONS

PLACE = CertificateName(namespace="elastic-system", name="elastic-autoscaler-metrics")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False, kind="ClusterRole")
PYTORCH = KINDS["PyTorchJob"]
JOBS = Resource("kubeflow.org", "v1", PYTORCH.plural, kind=PYTORCH.name)
PATIENCE_S = 90.0


@contextlib.contextmanager
def api_server(request: pytest.FixtureRequest, **options: Any) -> Iterator[Path]:
    """Yield the kubeconfig of the laptop's API server or of a real one, as the fixture's parameter says. `options` go to the laptop's."""
    if request.param == "own":
        with LocalCluster(control_plane=False, **options) as cluster:
            yield cluster.kubeconfig
    else:
        plane: ControlPlane = request.getfixturevalue("real_plane")
        yield plane.kubeconfig


async def until(what: str, holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until a claim holds. Errors of the API server may pass, so ask again after them."""
    last = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if await holds():
                        return
                except KubeError as error:
                    last = f"; last: {error}"
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}{last}") from None


async def ensure(kube: Kube, resource: Resource, body: Object, *, namespace: str | None = None) -> None:
    with contextlib.suppress(KubeError):
        await kube.create(resource, body, namespace=namespace)


async def furnish(kube: Kube) -> None:
    """Create the objects that the autoscaler's processes expect in a cluster."""
    await ensure(kube, NAMESPACES, {"metadata": {"name": PLACE.namespace}})
    await ensure(kube, CUSTOM_RESOURCE_DEFINITIONS, crd(PYTORCH))
    await until("jobs are served", lambda: kube.list(JOBS, namespace="default"))
    await ensure(kube, ROLES, {"metadata": {"name": PLACE.name}, "rules": []})
    ports = {"ports": [{"name": "https", "port": 443}]}
    await ensure(kube, SERVICES, {"metadata": {"name": PLACE.name}, "spec": ports}, namespace=PLACE.namespace)


async def clear(kube: Kube) -> None:
    """Delete everything that would hold up the namespaces of other tests."""
    for group, versions in VERSIONS.items():
        for version in versions:
            with contextlib.suppress(KubeError):
                await kube.delete(API_SERVICES, f"{version}.{group}")
    for resource in (HORIZONTAL_POD_AUTOSCALERS, JOBS, PODS):
        for item in (await kube.list(resource, namespace="default")).items:
            await kube.delete(resource, item["metadata"]["name"], namespace="default")


async def publish(kube: Kube, name: str, port: int) -> None:
    """Publish a port of this machine as the endpoints of a ready pod."""
    piece = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": PLACE.name}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": [machine_address()]}],
    }
    await kube.create(ENDPOINT_SLICES, piece, namespace=PLACE.namespace)


async def withdraw(kube: Kube, name: str) -> None:
    with contextlib.suppress(KubeError):
        await kube.delete(ENDPOINT_SLICES, name, namespace=PLACE.namespace)


async def available(kube: Kube) -> bool:
    for group, versions in VERSIONS.items():
        for version in versions:
            status = (await kube.get(API_SERVICES, f"{version}.{group}")).get("status") or {}
            if not any(c["type"] == "Available" and c["status"] == "True" for c in status.get("conditions") or ()):
                return False
    return True


async def discovered(kube: Kube) -> bool:
    for group, versions in VERSIONS.items():
        for version in versions:
            await kube.request("GET", f"/apis/{group}/{version}")
    return True


async def leave(kube: Kube, name: str) -> None:
    """Create a namespace with an object in it, and begin to delete it."""
    await kube.create(NAMESPACES, {"metadata": {"name": name}})
    await ensure(kube, SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}}, namespace=name)
    await kube.delete(NAMESPACES, name)


async def gone(kube: Kube, name: str) -> None:
    async def is_gone() -> bool:
        return await kube.find(NAMESPACES, name) is None

    await until(f"namespace {name} goes", is_gone)


async def deleted(kube: Kube, name: str) -> None:
    """Create a namespace with an object in it, delete it, and wait until it is gone."""
    await leave(kube, name)
    await gone(kube, name)
