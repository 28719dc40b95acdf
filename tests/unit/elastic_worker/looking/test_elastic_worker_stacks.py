"""`python -m elastic_worker.stacks` finds the workers of its own container, and shows what each one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking.calls import Wait, wait_of
from elastic_worker.looking.watching import Watched
from elastic_worker.stacks import workers_of

PATIENCE_S = 60.0
POD = f"uid-of-{os.getpid()}"
"""The pod of this process's workers. Tests of this module may run side by side in several processes."""
STAYS = """
import os, subprocess, sys, time
from elastic_worker import stack_signal
stack_signal.register(os.environ)
child = subprocess.Popen(["sleep", "600"])
time.sleep(600)
"""


def variables(rank: int, uid: str = POD) -> dict[str, str]:
    world = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "job"}
    clean = {name: value for name, value in os.environ.items() if name not in (*world, "ELASTIC_STACK_SIGNAL")}
    return clean | world | {"ELASTIC_POD_UID": uid}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[int]]:
    """Start two workers of this pod, each with a child process, and one of another pod. Yield their pids."""
    program = tmp_path / "stay.py"
    program.write_text(STAYS)
    environments = [variables(2), variables(3), variables(0, f"{POD}-b")]
    processes = [subprocess.Popen([sys.executable, str(program)], env=env, start_new_session=True) for env in environments]
    pids = [process.pid for process in processes]
    deadline = time.monotonic() + PATIENCE_S
    while any(wait_of(procfs.call(f"/proc/{pid}")) is not Wait.TIME for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield pids[:2]
    for process in processes:
        os.killpg(process.pid, 9)
        process.wait()


def told(*arguments: str, uid: str = POD) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic_worker.stacks", *arguments]
    return subprocess.run(command, env=os.environ | {"ELASTIC_POD_UID": uid}, capture_output=True, text=True, timeout=60, check=True)


def test_only_the_workers_of_this_pod_are_found_without_their_child_processes(workers: list[int]) -> None:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    assert [worker.pid for worker in workers_of(pids, {"ELASTIC_POD_UID": POD})] == workers


def test_each_rank_is_shown_with_its_place_and_its_stack(workers: list[int]) -> None:
    shown = told().stdout
    for rank, pid in zip((2, 3), workers, strict=True):
        assert f"rank {rank} (process {pid}) sleeps at stay.py:6:\n" in shown
    assert shown.count("line 6 in <module>") == 2


def test_one_rank_is_shown_by_its_present_number(workers: list[int]) -> None:
    """A pod's workers may have another rank than the one with which they began."""
    rows = json.loads(told("--json", "--pod-rank", "3", "--rank", "7").stdout)["workers"]
    assert [(row["rank"], row["pid"], row["does"], row["code"]) for row in rows] == [(7, workers[1], "sleeps", "time.sleep(600)")]


def test_without_workers_one_line_says_so(workers: list[int]) -> None:
    assert told(uid=f"{POD}-c").stderr == "elastic_worker: no training process of torchrun runs in this container\n"
    assert told("--rank", "9").stderr == "elastic_worker: no worker with rank 9 runs in this container\n"
    assert json.loads(told("--json", uid=f"{POD}-c").stdout) == {"workers": []}


def test_a_worker_that_is_a_shell_script_is_seen_as_the_program_that_it_runs(tmp_path: Path) -> None:
    program = tmp_path / "stay.py"
    program.write_text(STAYS)
    script = subprocess.Popen(["sh", "-c", f"{sys.executable} {program}; true"], env=variables(2), start_new_session=True)
    try:
        watched, deadline = Watched(script.pid, look_s=0.0), time.monotonic() + PATIENCE_S
        while watched.look().fields.get("does") != "sleeps":
            assert time.monotonic() < deadline, watched.look()
            time.sleep(0.05)
        look = watched.look()
        assert (look.fields["place"], look.fields["code"]) == ("stay.py:6", "time.sleep(600)")
        assert look.sight is not None
        assert look.sight.main.pid != script.pid
    finally:
        os.killpg(script.pid, 9)
        script.wait()
