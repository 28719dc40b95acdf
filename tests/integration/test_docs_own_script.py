"""The script of docs/own-script.md goes on where it was, under our rendezvous or without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-script.md"


def script(folder: Path) -> Path:
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    (folder / "train.py").write_text(found[1])
    return folder / "train.py"


@pytest.mark.integration
@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_world_of_another_size_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    train = script(tmp_path)
    environment = {**os.environ, "CHECKPOINT_DIR": str(tmp_path)}
    for steps, processes in ((5, 1), (100, 2)):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run([*torchrun, train, str(steps)], env=environment, capture_output=True, text=True, timeout=140)
        assert done.returncode == 0, done.stderr
        assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == steps
    assert re.fullmatch(r"step 100 world 2 loss \d\.\d{4}\n", done.stdout)
