"""The recorded operator once more, on a real API server, as it was recorded; with what deploy/ gives the controller and no more.

No scheduler runs: the suite itself says what becomes of pods, and a scheduler would say that there are no nodes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_replay import MODES, Mode, played, prepare
from real_servers import ControlPlane


@pytest.fixture(scope="module")
def kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if given := os.environ.get("KUBECONFIG"):
        yield Path(given)
        return
    assets: Path = request.getfixturevalue("real_assets")
    with ControlPlane(assets, tmp_path_factory.mktemp("without-scheduler"), has_scheduler=False) as plane:
        yield plane.kubeconfig


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_must_check_passes_on_a_real_api_server(
    kubeconfig: Path, tmp_path: Path, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(kubeconfig)
    run = played(kubeconfig, mode, tmp_path)
    with capsys.disabled():
        print(run.table)
    assert not run.failed, "\n".join(run.failed)
