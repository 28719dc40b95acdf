"""Fixtures that several modules of this folder use."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from built_overlays import Build, builds


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the output of kustomize for an overlay."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    return builds(tmp_path_factory.mktemp("deploy"))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that serves an API and opens an `elastic.Client` of it; both end with the test."""
    from client_api import clients  # it imports much

    monkeypatch.setattr("elastic.client.verbs.LOOK_EVERY_S", 0.01)
    with clients(tmp_path) as opening:
        yield opening
