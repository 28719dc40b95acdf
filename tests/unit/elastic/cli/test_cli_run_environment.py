"""Check in which Python environment `elastic run` lets a script run."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic.cli import run_environment
from elastic.client.script_job import ScriptOptions, job_of
from elastic.local.files import ClusterState, Layout


def environment(folder: Path, *, has_torch: bool = True) -> str:
    """Make a folder that looks like a Python environment."""
    (folder / "bin").mkdir(parents=True)
    if has_torch:
        (folder / "bin" / "torchrun").touch(mode=0o755)
    return str(folder)


def cluster(folder: Path, python: str) -> Path:
    """Note a cluster that the environment `python` started."""
    folder.mkdir()
    Layout(folder).write_state(
        ClusterState(
            supervisor=os.getpid(),
            sandbox="none",
            server="",
            kubeconfig="",
            nodes=1,
            gpus=0,
            control_plane=True,
            processes={},
            python=python,
        )
    )
    return folder


def script() -> dict[str, Any]:
    return job_of(Path("/train.py"), (), ScriptOptions(), working_dir=Path("/"))


def variables(job: dict[str, Any]) -> dict[str, str]:
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container.get("env", ())}


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Let `elastic` live in an environment with torch."""
    mine = environment(tmp_path / "mine")
    monkeypatch.setattr(sys, "prefix", mine)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")
    return mine


def test_a_script_runs_in_the_environment_of_the_command(mine: str, tmp_path: Path) -> None:
    """It ran in that of another shell, which had started the cluster and lacked its packages."""
    job, other = script(), environment(tmp_path / "other")
    said = run_environment.use(job, cluster(tmp_path / "data", other), says_path=False)
    assert said == f"commands run in your Python environment {mine}, not in {other}, which started the cluster"
    assert variables(job) == {"PATH": f"{mine}/bin:/usr/bin", "VIRTUAL_ENV": mine}


def test_the_active_environment_is_the_users_if_elastic_has_no_torch(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active = environment(tmp_path / "active")
    monkeypatch.setenv("VIRTUAL_ENV", active)
    assert run_environment.chosen() == mine
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run_environment.chosen() == active
    monkeypatch.setenv("VIRTUAL_ENV", environment(tmp_path / "bare", has_torch=False))
    assert run_environment.chosen() == mine


@pytest.mark.parametrize(
    ("same", "says_path", "has_torch", "said"),
    [
        (True, False, True, None),
        (False, True, True, None),
        (False, False, False, "commands run in the Python environment {other}, which started the cluster: {mine} has no torch"),
    ],
    ids=["the same", "the user's own PATH", "without torch"],
)
def test_otherwise_it_runs_where_the_cluster_does(
    mine: str, tmp_path: Path, same: bool, says_path: bool, has_torch: bool, said: str | None
) -> None:
    other = mine if same else environment(tmp_path / "other")
    if not has_torch:
        (Path(mine) / "bin" / "torchrun").unlink()
    job = script()
    told = run_environment.use(job, cluster(tmp_path / "data", other), says_path=says_path)
    assert told == (said and said.format(mine=mine, other=other))
    assert variables(job) == {}
