"""Compare the controller with the recorded Training Operator on a real API server, with the rights that deploy/ gives it.

No scheduler runs: the suite itself sets the status of pods, and a scheduler would report that there are no nodes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_replay import SCHEDULERS, played, prepare
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
@pytest.mark.parametrize("needs", SCHEDULERS)
def test_every_check_passes_on_a_real_api_server(kubeconfig: Path, tmp_path: Path, needs: str, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(kubeconfig)
    run = played(kubeconfig, needs, tmp_path)
    with capsys.disabled():
        print(run.table)
    assert not run.failed, "\n".join(run.failed)
