"""Check which exceptions tell of a broken GPU."""

import pytest

from elastic_worker.agent.device_errors import ADVICE, explain


@pytest.mark.parametrize(
    "error",
    [
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: CUDA error: hardware stack error",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: CUDA error: system not yet initialized",
        "RuntimeError: GPU is lost. Reboot the system to recover this GPU",
    ],
)
def test_a_broken_device_is_named_with_advice(error: str) -> None:
    assert explain(error) == f"{ADVICE}: {error}"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "ValueError: bad batch",
        "",
    ],
)
def test_an_error_of_the_program_is_not(error: str) -> None:
    assert explain(error) == ""
