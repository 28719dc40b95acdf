"""A stopped worker is killed, unless a debugger or a frozen cgroup holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from silent_rendezvous import SilentRendezvous

from elastic_worker.agent.workers import LocalWorkers
from elastic_worker.looking import stopped
from elastic_worker.looking.stopped import Sight, StoppedWorkers, _is_frozen, _is_traced, sight


class Process:
    """A process as a test describes it."""

    def __init__(self) -> None:
        self.sight: Sight | None = Sight("T", "1", False)
        self.workers = StoppedWorkers(lambda pid: self.sight)
        self.now = 10.0

    def is_over_limit(self, after_s: float = 0.125) -> bool:
        self.now += after_s
        return self.workers.over_limit([7], now=self.now) == [7]


def test_a_worker_that_is_stopped_for_half_a_second_is_over_the_limit() -> None:
    process = Process()
    assert [process.is_over_limit() for _ in range(6)] == 4 * [False] + 2 * [True]


@pytest.mark.parametrize("other", [Sight("S", "1", False), Sight("t", "1", False), Sight("T", "1", True), Sight("T", "2", False), None])
def test_a_process_that_runs_is_traced_frozen_another_or_gone_begins_again(other: Sight | None) -> None:
    process = Process()
    assert not any(process.is_over_limit() for _ in range(4))
    process.sight, stopped = other, process.sight
    assert not process.is_over_limit()
    process.sight = stopped
    assert not any(process.is_over_limit() for _ in range(4))


def test_an_agent_that_was_stopped_itself_kills_nobody_at_its_first_look() -> None:
    process = Process()
    process.is_over_limit()
    assert not process.is_over_limit(after_s=60.0)
    assert not process.is_over_limit(after_s=0.625), "two looks are too few"
    assert process.is_over_limit(after_s=0.125)


def test_the_words_of_the_kernel_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_traced("Name:\tpython\nTracerPid:\t4711\n")
    assert not _is_traced("Name:\tpython\nTracerPid:\t0\n")
    files = {
        "/sys/fs/cgroup/kubepods/pod1/cgroup.events": "populated 1\nfrozen 1\n",
        "/sys/fs/cgroup/kubepods/pod2/cgroup.events": "populated 1\nfrozen 0\n",
        "/sys/fs/cgroup/freezer/pod3/freezer.state": "FREEZING\n",
    }
    monkeypatch.setattr(stopped, "_read_if_there", lambda path: files.get(path, ""))
    assert _is_frozen("0::/kubepods/pod1\n")
    assert not _is_frozen("0::/kubepods/pod2\n")
    assert not _is_frozen("0::/../elsewhere\n")
    assert _is_frozen("9:memory:/pod3\n8:freezer:/pod3\n0::/\n")


class Reports(SilentRendezvous):
    """A rendezvous that notes the reports to it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, dict[str, object]]] = []
        self.came = threading.Event()

    def report_state(self, kind: str, **fields: object) -> None:
        self.said.append((kind, fields))
        if kind == "failed":
            self.came.set()


@pytest.fixture
def watched() -> Iterator[tuple[Reports, LocalWorkers, subprocess.Popen[bytes]]]:
    reports = Reports()
    workers = LocalWorkers(reports, generation=3, is_terminating=threading.Event())  # type: ignore[arg-type]
    workers.begin()
    child = subprocess.Popen(["sleep", "600"])
    yield reports, workers, child
    workers.end()
    child.kill()
    child.wait()


def test_a_stopped_child_is_killed_and_its_failure_says_why(watched: tuple[Reports, LocalWorkers, subprocess.Popen[bytes]]) -> None:
    reports, workers, child = watched
    os.kill(child.pid, signal.SIGSTOP)
    looks, deadline, found = StoppedWorkers(), time.monotonic() + 60, list[int]()
    while not found and time.monotonic() < deadline:
        found = looks.over_limit([child.pid], now=time.monotonic())
        time.sleep(0.02)
    assert found == [child.pid]
    workers.kill(os.getpid(), "a process that is no worker")
    workers.kill(child.pid, "it was stopped")
    assert reports.came.wait(30)
    (failed,) = [fields for kind, fields in reports.said if kind == "failed"]
    assert (failed["status"], failed["error"], failed["detail"]) == (137, "it was stopped", f"worker process {child.pid}")


def test_a_process_is_seen_as_it_is(watched: tuple[Reports, LocalWorkers, subprocess.Popen[bytes]]) -> None:
    _, _, child = watched
    seen = sight(child.pid)
    assert seen is not None
    assert seen.state in "SRD"
    assert not seen.is_held
    child.kill()
    child.wait()
    assert sight(child.pid) is None
