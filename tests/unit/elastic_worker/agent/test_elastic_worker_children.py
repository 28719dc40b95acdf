"""How an agent learns of its workers' ends next to torch, which reaps them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from silent_rendezvous import SilentRendezvous

from elastic_worker.agent import children
from elastic_worker.agent.children import ChildWatch
from elastic_worker.agent.workers import LocalWorkers


class Seen:
    """The words that a watch told."""

    def __init__(self) -> None:
        self.started = 0
        self.ends: dict[int, int | None] = {}
        self.watch = ChildWatch(on_start=self._start, on_end=self._end)

    def _start(self) -> None:
        self.started += 1

    def _end(self, pid: int, status: int | None) -> None:
        self.ends[pid] = status


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-IS", "-c", code])


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_ends_are_told_as_a_shell_would_say_them_and_left_for_torch_to_reap(has_descriptors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    seen = Seen()
    seen.watch.begin()
    fine, failing, long = child("pass"), child("raise SystemExit(3)"), child("import time; time.sleep(60)")
    try:
        wait_until(lambda: long.pid in seen.watch.running())
        long.kill()
        wait_until(lambda: len(seen.ends) == 3)
        assert seen.ends == {fine.pid: 0, failing.pid: 3, long.pid: 128 + signal.SIGKILL}
        assert seen.started == 1
        assert [process.wait() for process in (fine, failing, long)] == [0, 3, -signal.SIGKILL]
    finally:
        seen.watch.end()
        for process in (fine, failing, long):
            process.kill()
            process.wait()


def test_children_from_before_are_nobodys_workers() -> None:
    older = child("import time; time.sleep(60)")
    seen = Seen()
    seen.watch.begin()
    try:
        younger = child("import time; time.sleep(60)")
        wait_until(lambda: seen.watch.running() == [younger.pid])
        assert seen.watch.kill([older.pid, younger.pid]) == [younger.pid]
        assert older.poll() is None
        younger.wait()
    finally:
        seen.watch.end()
        older.kill()
        older.wait()


def test_nothing_is_told_once_the_world_of_the_children_has_ended() -> None:
    seen = Seen()
    seen.watch.begin()
    process = child("import time; time.sleep(60)")
    wait_until(lambda: seen.watch.running() == [process.pid])
    seen.watch.end()
    process.kill()
    process.wait()
    wait_until(lambda: not any(thread.name == "elastic-children" for thread in threading.enumerate()))
    assert seen.ends == {}


@pytest.mark.parametrize(("code", "status"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_an_end_that_torch_has_read_first_is_known_from_torchs_popen(code: str, status: int) -> None:
    """On a busy machine torch's poll came before ours, and a worker that had ended with 0 was reported as failed."""
    process = child(code)
    process.wait()
    assert children.end_of(process.pid) == (True, status)


def test_an_end_that_somebody_else_has_read_is_known_but_not_how() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-IS", "-c", "pass"], os.environ)
    os.waitpid(pid, 0)
    assert children.end_of(pid) == (True, None)


def test_a_child_that_we_finish_counts_as_ended_with_0_for_us_and_for_its_parent() -> None:
    """subprocess, and so torch, takes a child whose status somebody else has read for one that ended with 0."""
    seen = Seen()
    seen.watch.begin()
    stuck, fine = child("import time; time.sleep(60)"), child("pass")
    try:
        wait_until(lambda: stuck.pid in seen.watch.running() and fine.pid in seen.ends)
        assert seen.watch.finish(stuck.pid)
        assert stuck.poll() == 0
        wait_until(lambda: len(seen.ends) == 2)
        assert seen.ends == {stuck.pid: 0, fine.pid: 0}
        assert seen.watch.succeeded == 2
        assert not seen.watch.finish(stuck.pid)
    finally:
        seen.watch.end()
        for process in (stuck, fine):
            process.kill()
            process.wait()


class Reports(SilentRendezvous):
    """Notes which states were reported."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.fields: dict[str, dict[str, object]] = {}

    def report_state(self, kind: str, **fields: object) -> None:
        time.sleep(0.3 if kind == "started" else 0.0)
        self.kinds.append(kind)
        self.fields[kind] = fields


@pytest.mark.parametrize(("code", "end"), [("pass", "finished"), ("raise SystemExit(3)", "failed")])
def test_an_end_that_torch_saw_first_is_reported_before_torchrun_ends(code: str, end: str) -> None:
    """The job counted as unfinished for as long as its pod took to end, for torchrun was quicker than the thread that reports."""
    reports = Reports()
    workers = LocalWorkers(reports, generation=1, is_terminating=threading.Event())
    workers.begin()
    process = child(code)
    wait_until(lambda: bool(workers._watch.running()))  # the thread that reports is busy for some time from now on
    process.wait()
    workers.end_with_torchrun()
    assert reports.kinds == ["started", end]


def test_workers_that_do_not_stop_within_their_grace_are_killed_and_counted() -> None:
    """Their save is cut off, and nothing said so."""
    workers = LocalWorkers(Reports(), generation=1, is_terminating=threading.Event())
    workers.begin()
    process = child("import time; time.sleep(60)")
    try:
        wait_until(lambda: workers._watch.running() == [process.pid])
        workers.rejoin(0.05)
        wait_until(lambda: workers.killed_late == 1)
        assert process.wait() == -signal.SIGKILL
    finally:
        workers.end()
        process.kill()
        process.wait()


def test_torchrun_does_not_wait_for_a_worker_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_worker.agent.workers.LAST_REPORT_WAIT_S", 0.1)
    workers = LocalWorkers(Reports(), generation=1, is_terminating=threading.Event())
    workers.begin()
    process = child("import time; time.sleep(60)")
    try:
        wait_until(lambda: bool(workers._watch.running()))
        workers.end_with_torchrun()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("status", "uses_library", "is_told"), [(3, True, True), (4, True, True), (3, False, False), (1, True, False)])
def test_a_worker_that_the_library_ended_is_reported_as_no_failure_of_the_program(status: int, uses_library: bool, is_told: bool) -> None:
    reports = Reports()
    workers = LocalWorkers(reports, generation=1, is_terminating=threading.Event())
    workers.begin()
    process = subprocess.Popen([sys.executable, "-IS", "-c", f"import sys; sys.stdin.read(); sys.exit({status})"], stdin=subprocess.PIPE)
    wait_until(lambda: bool(workers._watch.running()))
    if uses_library:
        workers.use_library(workers.child_of(process.pid))
    process.communicate()
    workers.end_with_torchrun()
    assert reports.fields["failed"].get("by_library", False) is is_told
