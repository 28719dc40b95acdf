"""Holds the controller to what the Training Operator did on a real API server, recorded in tests/operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import api_server
from operator_replay import SCHEDULERS, failures, prepare


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with api_server(tmp_path_factory.mktemp("operator")) as path:
        prepare(path)
        yield path


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("needs", SCHEDULERS)
def test_every_must_check_of_the_recorded_operator_passes(
    kubeconfig: Path, tmp_path: Path, needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        failed = failures(kubeconfig, needs, tmp_path)
    assert not failed, "\n".join(failed)
