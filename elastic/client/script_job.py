"""Make the PyTorchJob of a script for `elastic run train.py`, which a user would have to write as YAML. Pure; it reads no files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic.api.words import GPU

SUFFIXES = (".py", ".sh")
IMAGE = "example.com/train:1"
MAX_RESTARTS = 3
SAME_ERROR = 1
"""Restarts after attempts that failed alike, without a step: a third attempt would fail as the first two."""
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Workers:
    """The least and the greatest number of workers."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Workers:
        """Read N, or MIN:MAX as in torchrun's --nnodes."""
        found = re.fullmatch(r"([0-9]{1,5})(?::([0-9]{1,5}))?", text)
        if found is None:
            raise ValueError(f"{text!r} is neither a number of workers nor MIN:MAX, such as 1:4")
        workers = cls(int(found[1]), int(found[2] or found[1]))
        if not 1 <= workers.least <= workers.most:
            raise ValueError(f"{text!r}: the least number must be at least 1 and at most the greatest")
        return workers

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """The choices of a user about the job of a script. None stands for the default of the API, or of `job_of`."""

    workers: Workers = Workers(1, 1)
    gpus: int = 0
    cpus: str | None = None
    memory: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    """Processes of each worker; one for each GPU, or one, unless it is given."""
    image: str | None = None
    name: str | None = None
    max_restarts: int | None = None
    hang_timeout_s: int | None = None
    first_step_s: int | None = None

    @property
    def limits(self) -> dict[str, Any]:
        """Return the resources that each worker gets."""
        asked = {"cpu": self.cpus, "memory": self.memory, GPU: self.gpus or None}
        return {name: amount for name, amount in asked.items() if amount is not None}


def is_script(sources: Sequence[str]) -> bool:
    """Return whether the first word is a program instead of a job file."""
    return bool(sources) and Path(sources[0]).suffix in SUFFIXES


def name_of(script: Path) -> str:
    """Return a name for Kubernetes, made of the file's name."""
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:LONGEST_NAME].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")


def job_of(script: Path, arguments: Sequence[str], options: ScriptOptions, *, working_dir: Path) -> dict[str, Any]:
    """Return an elastic job, with limits on a script that always fails.

    If nobody asks for a number of restarts, a second attempt that ends as the first one did is the last. maxRestarts counts failures at
    the rendezvous, and backoffLimit the restarts of containers that never come so far. backoffLimit lets each worker's container restart
    once more, so that it is never the first limit, and no single disruption of all workers reaches it.
    """
    workers, most = options.workers, options.max_restarts
    policy: dict[str, Any] = {"minReplicas": workers.least, "maxReplicas": workers.most}
    policy |= {"maxRestarts": MAX_RESTARTS, "restartBudget": {"sameError": SAME_ERROR}} if most is None else {"maxRestarts": most}
    limits = {"hangTimeoutSeconds": options.hang_timeout_s, "firstStepTimeoutSeconds": options.first_step_s}
    policy |= {name: seconds for name, seconds in limits.items() if seconds is not None}
    program = ["torchrun", str(script)] if script.suffix == ".py" else ["sh", str(script)]
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": options.image or IMAGE,
        "command": [*program, *arguments],
        "workingDir": str(working_dir),
    }
    if options.env:
        container["env"] = [{"name": name, "value": value} for name, value in options.env.items()]
    if options.limits:
        container["resources"] = {"limits": options.limits}
    template = {"spec": {"terminationGracePeriodSeconds": 10, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": options.name or name_of(script)},
        "spec": {
            "runPolicy": {"backoffLimit": policy["maxRestarts"] + workers.most},
            "elasticPolicy": policy,
            "nprocPerNode": str(options.processes or options.gpus or 1),
            "pytorchReplicaSpecs": {"Worker": {"replicas": workers.most, "restartPolicy": "OnFailure", "template": template}},
        },
    }
