"""A real API server for the tests in this folder: the one that KUBECONFIG names, or one started from KUBEBUILDER_ASSETS.

Tests take `kubeconfig` (a path), `kube` (a client), `namespace` (a fresh one, deleted afterwards) or `served` (a namespace where every
kind of ours is served).
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from old_operators import Typed
from real_servers import ControlPlane

from elastic.api import API_VERSION, KINDS, Kind
from elastic.api.crd import crd
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError

SERVED_WITHIN_S = 60
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    if given := os.environ.get("KUBECONFIG"):
        return Path(given)
    plane: ControlPlane = request.getfixturevalue("real_plane")
    return plane.kubeconfig


@pytest.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[Kube]:
    async with connect(kubeconfig) as client:
        yield client


@pytest.fixture
def own_kubeconfig(real_assets: Path, tmp_path: Path) -> Iterator[Path]:
    """Start a server for one test, which is about a whole cluster."""
    folder = tmp_path / "plane"
    folder.mkdir()
    with ControlPlane(real_assets, folder, has_scheduler=False) as plane:
        yield plane.kubeconfig


@pytest.fixture
async def namespace(kube: Kube) -> AsyncIterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    await kube.request("POST", "/api/v1/namespaces", body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await kube.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def crds(kubeconfig: Path) -> None:
    """Apply our CRDs once, and wait until they are served."""
    asyncio.run(_apply_crds(kubeconfig))


@pytest.fixture
def served(crds: None, namespace: str) -> str:
    return namespace


async def _apply_crds(kubeconfig: Path) -> None:
    params = {"fieldValidation": "Strict", "fieldManager": "test", "force": "true"}
    async with connect(kubeconfig) as kube, asyncio.timeout(SERVED_WITHIN_S):
        for kind in KINDS.values():
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind.crd_name}"
            await kube.request("PATCH", path, params=params, body=crd(kind), content_type="application/apply-patch+yaml")
        for kind in KINDS.values():
            await _until_served(kube, kind)


async def _until_served(kube: Kube, kind: Kind) -> None:
    while True:
        try:
            await kube.request("GET", f"/apis/{API_VERSION}/{kind.plural}")
        except KubeError as error:
            if error.code != 404:
                raise
        else:
            return
        await asyncio.sleep(0.1)


@pytest.fixture
def typed(real_assets: Path, tmp_path: Path) -> Iterator[Typed]:
    """Start a server for one test, because definitions of other tests would be in the way."""
    folder = tmp_path / "plane"
    folder.mkdir()
    with ControlPlane(real_assets, folder) as plane:
        yield Typed(plane.kubeconfig)
