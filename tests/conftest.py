"""One real control plane for all tests of a session that want one, whichever folder they are in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_servers import ControlPlane


@pytest.fixture(scope="session")
def real_assets() -> Path:
    """The folder with etcd, kube-apiserver and, if there, their companions. Without it the test is skipped."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("no real API server: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver")
    if missing := ControlPlane.missing(Path(folder)):
        pytest.skip(f"no real API server: {', '.join(missing)} missing in KUBEBUILDER_ASSETS {folder}")
    return Path(folder)


@pytest.fixture(scope="session")
def real_plane(real_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Shared: a test leaves nothing behind that another would meet."""
    with ControlPlane(real_assets, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
