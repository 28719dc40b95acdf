"""The recorded operator once more, on a real API server, as it was recorded; with what deploy/ gives the controller and no more."""

from pathlib import Path

import pytest
from operator_replay import MODES, Mode, played, prepare


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
