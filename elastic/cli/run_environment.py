"""Run the job of a script in the Python environment of the user who typed `elastic run`, and say in which one a job file runs."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from elastic.local.files import Layout


def chosen() -> str:
    """Return the folder of the user's environment.

    It is that of `elastic` if it has torch. Else, as with an `elastic` that pipx installed, it is the active one if that has torch.
    """
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""
    is_complete = importlib.util.find_spec("torch") is not None
    return active if not is_complete and active and _has_torchrun(active) else sys.prefix


def use(job: dict[str, Any], data_dir: Path, *, says_path: bool) -> str | None:
    """Let the containers of a script's job use the user's environment; return the sentence for the user if it is not the cluster's.

    `says_path`: the job names its own PATH or image, which decides instead.
    """
    state, wanted = Layout(data_dir).read_state(), chosen()
    cluster = state.python if state is not None else ""
    if says_path or not cluster or cluster == wanted:
        return None
    if not _has_torchrun(wanted):
        return f"commands run in the Python environment {cluster}, which started the cluster: {wanted} has no torch"
    path = os.pathsep.join([os.path.join(wanted, "bin"), os.environ.get("PATH", os.defpath)])
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        for container in replica["template"]["spec"]["containers"]:
            container["env"] = [*container.get("env", ()), {"name": "PATH", "value": path}, {"name": "VIRTUAL_ENV", "value": wanted}]
    return f"commands run in your Python environment {wanted}, not in {cluster}, which started the cluster"


def other(data_dir: Path) -> str | None:
    """Return the sentence about the environment of the cluster if it is not that of this command; job files and their images choose it."""
    state = Layout(data_dir).read_state()
    if state is None or state.python in ("", sys.prefix):
        return None
    return f"commands run in the Python environment {state.python}, which started the cluster, not in {sys.prefix}"


def _has_torchrun(folder: str) -> bool:
    return os.access(os.path.join(folder, "bin", "torchrun"), os.X_OK)
