"""Tell failures of a GPU, its link or its driver from failures of the program, by the line of the exception."""

import re

HARDWARE = re.compile(
    r"uncorrectable (ECC|NVLink) error|hardware stack error|fallen off the bus|GPU is lost"
    r"|no (CUDA-capable|CUDA|ROCm-capable|HIP) (device|GPUs?) (is|are) (detected|available)"
    r"|(CUDA|HIP) error: (initialization error|system not yet initialized|all CUDA-capable devices are busy or unavailable)"
    r"|Invalid access of peer GPU memory over nvlink or a hardware error",
    re.IGNORECASE,
)
ADVICE = "a GPU, its link or its driver failed, so cordon the node and delete the pod"


def explain(error: str) -> str:
    """Return the line of the exception with advice if it tells of broken hardware, else ""."""
    return "{}: {}".format(ADVICE, error) if HARDWARE.search(error) else ""
