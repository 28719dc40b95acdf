"""Say how many GPUs of the laptop cluster are pretended, because this machine has fewer."""

from __future__ import annotations

import re
from pathlib import Path

from elastic.api.counting import counted

DEVICES = Path("/dev")


def found() -> int:
    """Return how many NVIDIA GPUs this machine has."""
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in DEVICES.glob("nvidia*"))


def words(gpus: int) -> str:
    """Return the sentence about GPUs of the cluster that this machine does not have; empty if it has all of them."""
    real = found()
    if gpus <= real:
        return ""
    has = counted(real, "GPU") if real else "no GPU"
    those = "the GPU of the cluster is" if gpus == 1 else f"{gpus - real} of the cluster's {gpus} GPUs are" if real else f"all {gpus} are"
    return f"this machine has {has}, so {those} pretended: pods are placed as if they had them, and programs find none"
