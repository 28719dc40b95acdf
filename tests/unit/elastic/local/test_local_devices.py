"""Check what the laptop cluster says of GPUs that the machine does not have."""

from pathlib import Path

import pytest

from elastic.local import devices


@pytest.mark.parametrize(
    ("real", "gpus", "words"),
    [
        (0, 0, ""),
        (2, 2, ""),
        (0, 1, "this machine has no GPU, so the GPU of the cluster is pretended: "),
        (0, 4, "this machine has no GPU, so all 4 are pretended: "),
        (1, 4, "this machine has 1 GPU, so 3 of the cluster's 4 GPUs are pretended: "),
    ],
)
def test_a_gpu_that_is_not_there_is_called_pretended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: int, gpus: int, words: str
) -> None:
    """`--gpus 1` on a machine without GPUs trained on the CPU without a word."""
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(real))]:
        (tmp_path / name).touch()
    assert devices.words(gpus).startswith(words)
    assert bool(devices.words(gpus)) == bool(words)
