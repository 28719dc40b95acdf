"""A laptop cluster that was stopped, or killed, while something ran: nothing of it starts by itself, and a job starts where it did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laptop import gone, phase, pod, shell, until

from elastic.api.kinds import KINDS
from elastic.api.names import STOPPED
from elastic.kube import connect
from elastic.kube.following import resource_of
from elastic.kube.resources import PODS
from elastic.local.files import Layout
from elastic.local.stopped import MESSAGE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
JOBS = resource_of(KINDS["PyTorchJob"])
PROGRAM = "trap 'echo saved >> saves; exit 143' TERM; echo $HOSTNAME >> starts; while ! [ -e end ]; do sleep 0.1; done"
CONTAINER = {"name": "pytorch", "image": "any", "command": ["sh", "-c", PROGRAM]}


def job(name: str) -> dict[str, Any]:
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [CONTAINER]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replica}},
    }


def elastic(*words: str, data: Path, cwd: Path, refused: bool = False) -> str:
    """Return the words of the command, or the reason why it is refused."""
    command = [sys.executable, "-m", "elastic.cli", *words, "--data-dir", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=cwd)
    assert done.returncode == (1 if refused else 0), done.stderr
    return done.stderr if refused else done.stdout


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Path, Path, Path]]:
    data, first, second = (tmp_path / name for name in ("data", "first", "second"))
    first.mkdir()
    second.mkdir()
    yield data, first, second
    subprocess.run([sys.executable, "-m", "elastic.cli", "down", "--data-dir", str(data)], capture_output=True, timeout=100)


def starts(folder: Path) -> list[str]:
    file = folder / "starts"
    return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize("end", [pytest.param("down", marks=pytest.mark.full), "kill"])
async def test_jobs_and_pods_that_ran_stay_stopped_until_they_are_asked_for_and_start_in_their_folder(
    folders: tuple[Path, Path, Path], end: str
) -> None:
    data, first, second = folders
    layout = Layout(data)
    elastic("up", "--detach", data=data, cwd=first)
    async with connect(layout.kubeconfig) as kube:
        await kube.create(JOBS, job("train"), namespace="default")
        await kube.create(PODS, pod("alone", shell("echo alone >> starts; sleep 1000"), restartPolicy="Always"), namespace="default")
        await phase(kube, "alone", "Running")
        await until(lambda: sorted(starts(first)) == ["alone", "train-master-0"], "both run")
    if end == "down":
        said = elastic("down", data=data, cwd=first)
        assert "unfinished" in said
        assert "PyTorchJob default/train" in said
        assert (first / "saves").read_text() == "saved\n", "its program saves its state"
    else:
        state = layout.read_state()
        assert state is not None
        os.kill(state.supervisor, signal.SIGKILL)

    said = elastic("up", "--detach", data=data, cwd=second)
    assert f"  PyTorchJob default/train\n  elastic resume --data-dir {data}\n" in said
    async with connect(layout.kubeconfig) as kube:
        alone = await phase(kube, "alone", "Failed")
        assert alone["status"]["message"] == MESSAGE
        await until(lambda: _is_told_suspended(kube), "the job says that it is suspended")
        await gone(kube, "train-master-0")
        assert len(starts(first)) == 2
        assert starts(second) == []

        said = elastic("resume", "train", data=data, cwd=second)
        assert said == f"PyTorchJob default/train resumed in {first}\n"
        await until(lambda: starts(first).count("train-master-0") == 2, "it has started again")
        (first / "end").touch()
        await until(lambda: _has_succeeded(kube), "it has succeeded")
        assert starts(second) == []
        stored = await kube.get(JOBS, "train", namespace="default")
        assert STOPPED not in stored["metadata"].get("annotations", {})
    assert elastic("down", data=data, cwd=second) == "stopped\n"


async def _is_told_suspended(kube: Any) -> bool:
    return await _has(kube, "Suspended")


async def _has_succeeded(kube: Any) -> bool:
    return await _has(kube, "Succeeded")


async def _has(kube: Any, condition: str) -> bool:
    stored = await kube.get(JOBS, "train", namespace="default")
    conditions = stored.get("status", {}).get("conditions", [])
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


async def test_a_job_whose_folder_nobody_knows_is_resumed_only_with_a_folder(folders: tuple[Path, Path, Path]) -> None:
    data, first, second = folders
    layout = Layout(data)
    elastic("up", "--detach", data=data, cwd=first)
    async with connect(layout.kubeconfig) as kube:
        await kube.create(JOBS, job("train"), namespace="default")
        await until(lambda: starts(first), "it runs")
    layout.working_dir.unlink()  # as an earlier version left the folder
    elastic("down", data=data, cwd=first)
    elastic("up", "--detach", data=data, cwd=second)
    said = elastic("resume", data=data, cwd=second, refused=True)
    assert "PyTorchJob default/train: the folder in which Master started is unknown; name one with --working-dir FOLDER" in said
    said = elastic("resume", "other", data=data, cwd=second, refused=True)
    assert "there is no job other in namespace default; there are: train" in said
    assert elastic("resume", "--working-dir", str(second), data=data, cwd=first) == f"PyTorchJob default/train resumed in {second}\n"
    async with connect(layout.kubeconfig) as kube:
        await until(lambda: starts(second) == ["train-master-0"], "it runs in the other folder")
        (second / "end").touch()
        await until(lambda: _has_succeeded(kube), "it has succeeded")
