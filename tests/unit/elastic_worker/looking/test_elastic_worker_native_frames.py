"""The functions below Python are named by py-spy if it is there, and else by the kernel."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_elastic_worker_describing import process as process_of

from elastic_worker.looking import dumping, stacks, watching
from elastic_worker.looking.sight import Sight

PY_SPY = """#!/bin/sh
echo "$@" >>{folder}/asked
[ "$2" = --native ] || exit 1
printf 'Thread 7 (idle): "MainThread"\\n    read (libc.so.6)\\n'
{ending}
"""


@pytest.fixture
def sleeper() -> Iterator[int]:
    """Yield a process that is asleep."""
    with subprocess.Popen(["sh", "-c", "echo begun; exec sleep 600"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        folder, deadline = Path(f"/proc/{process.pid}"), time.monotonic() + 60
        while (folder / "comm").read_text() != "sleep\n" or "nanosleep" not in (folder / "wchan").read_text():
            if time.monotonic() > deadline:
                process.kill()
                pytest.skip("this kernel does not say in which function a process waits")
            time.sleep(0.01)
        yield process.pid
        process.kill()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, ending: str = "") -> None:
    """Put a program named py-spy into the path, which ends in this way."""
    program = folder / "py-spy"
    program.write_text(PY_SPY.format(folder=folder, ending=ending))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_native_frames_are_read_if_py_spy_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: int) -> None:
    install(tmp_path, monkeypatch)
    assert dumping.below_python(sleeper) == 'Native frames, found by py-spy:\nThread 7 (idle): "MainThread"\n    read (libc.so.6)'
    assert (tmp_path / "asked").read_text() == f"dump --native --pid {sleeper}\n"
    monkeypatch.setattr(dumping, "LONGEST_NATIVE", 8)
    assert dumping.below_python(sleeper).endswith(":\nThread 7")


@pytest.mark.parametrize("ending", ["exit 1", "sleep 60", None])
def test_without_native_frames_the_kernel_names_its_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: int, ending: str | None
) -> None:
    """It may be forbidden to look at the process, take too long, or not be installed."""
    monkeypatch.setattr(dumping, "PY_SPY_S", 0.2)
    if ending is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        install(tmp_path, monkeypatch, ending)
    function = Path(f"/proc/{sleeper}/wchan").read_text()
    assert dumping.below_python(sleeper) == f"It waits in the function {function} of the kernel."


def test_a_process_that_has_ended_has_no_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dumping.below_python(2**22) == ""


def test_native_frames_stand_below_the_stacks() -> None:
    seen = Sight(0.0, process_of(), (), is_held=False, folder="", group_threads=frozenset(), switches=0)
    seen = dataclasses.replace(seen, stacks=stacks.Stacks(None, (), "stack"), below_python="native", recorder="group 0")
    text = watching.text_of(watching.Look({}, seen), "rank 0:", 1000)
    assert text == "rank 0:\nstack\nnative\nFlight recorder of torch:\n  group 0"
