"""How many processes torchrun starts in each worker of a PyTorchJob, as far as the job itself says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elastic.api.words import GPU

VARIABLE, FLAG = "PET_NPROC_PER_NODE", "--nproc-per-node"
BY_DEVICE = ("auto", "gpu")


def processes_per_worker(spec: Mapping[str, Any]) -> int | None:
    """Return the number of processes, or None if the node decides: the value is no number, and the template has no GPUs."""
    template = ((spec.get("pytorchReplicaSpecs") or {}).get("Worker") or {}).get("template") or {}
    container: Mapping[str, Any] = next(iter((template.get("spec") or {}).get("containers") or ()), {})
    asked = next(_asked(spec, container))
    if asked.isascii() and asked.isdigit():
        return int(asked) or None
    gpus = str(((container.get("resources") or {}).get("limits") or {}).get(GPU) or "")
    return int(gpus) if asked in BY_DEVICE and gpus.isascii() and gpus.isdigit() and int(gpus) else None


def _asked(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sources of the number, the strongest first: the command, the container's variable, the job."""
    yield from _flags([*(container.get("command") or ()), *(container.get("args") or ())])
    yield from (str(one["value"]) for one in container.get("env") or () if one.get("name") == VARIABLE and one.get("value"))
    for word in (spec.get("nprocPerNode"), (spec.get("elasticPolicy") or {}).get("nProcPerNode")):
        if word:
            yield str(word)
    yield "auto"


def _flags(words: Sequence[Any]) -> Iterator[str]:
    for index, word in enumerate(words):
        name, equals, value = str(word).partition("=")
        if name.replace("_", "-") == FLAG:
            yield value if equals else str(next(iter(words[index + 1 :]), ""))
