"""Share one real control plane among the tests of a session that want it, and choose the examples of properties.

Each run tries the same examples, so that a red run can be repeated and a change is not blamed for an example that nobody had tried before.
`make test-full` tries new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from real_servers import ControlPlane

settings.register_profile("fast", settings.get_profile("ci"), max_examples=10)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def real_assets() -> Path:
    """Return the folder with etcd, kube-apiserver and, if there, their companions. Skip the test without it."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("no real API server: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver")
    if missing := ControlPlane.missing(Path(folder)):
        pytest.skip(f"no real API server: {', '.join(missing)} missing in KUBEBUILDER_ASSETS {folder}")
    return Path(folder)


@pytest.fixture(scope="session")
def real_plane(real_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start the shared control plane. A test leaves nothing behind that another would meet."""
    with ControlPlane(real_assets, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
