"""The recorded operator once more, on a real API server, as it was recorded; with what deploy/base gives the controller and no more."""

from pathlib import Path

import pytest
from operator_replay import SCHEDULERS, failures, prepare


@pytest.mark.timeout(900)
@pytest.mark.parametrize("needs", SCHEDULERS)
def test_every_must_check_passes_on_a_real_api_server(
    kubeconfig: Path, tmp_path: Path, needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(kubeconfig)
    with capsys.disabled():
        failed = failures(kubeconfig, needs, tmp_path)
    assert not failed, "\n".join(failed)
