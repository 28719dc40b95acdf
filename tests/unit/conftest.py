"""What several modules of this folder build once for all of them."""

from __future__ import annotations

import shutil

import pytest
from built_overlays import Build, builds


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """What kustomize makes of an overlay."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    return builds(tmp_path_factory.mktemp("deploy"))
