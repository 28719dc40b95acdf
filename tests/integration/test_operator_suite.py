"""Compare the controller with the Training Operator on a real API server, as tests/operator has recorded it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import api_server
from operator_replay import SCHEDULERS, played, prepare

AGAIN = "scheduler-plugins"
"""The second of two gang schedulers, for which the controller does the same things with other words."""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with api_server(tmp_path_factory.mktemp("suite")) as kubeconfig:
        prepare(kubeconfig)
        yield kubeconfig


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("needs", [pytest.param(needs, marks=[pytest.mark.full] * (needs == AGAIN)) for needs in SCHEDULERS])
def test_every_check_passes_but_for_the_differences_that_are_listed(
    kubeconfig: Path, needs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played(kubeconfig, needs, tmp_path)
    with capsys.disabled():
        print(run.table)
    assert not run.failed, "\n".join(run.failed)
