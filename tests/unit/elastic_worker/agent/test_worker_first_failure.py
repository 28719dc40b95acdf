"""The agent blames one of several workers: the one that failed by itself, not one that fell because it was gone."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from silent_rendezvous import SilentRendezvous

from elastic_training.rendezvous.engine import peer_errors
from elastic_worker.agent import first_failure
from elastic_worker.agent.first_failure import End, first
from elastic_worker.agent.memory import MemoryKills
from elastic_worker.agent.worker_stderr import PipedStderr, WorkerStderr
from elastic_worker.agent.workers import LocalWorkers

OWN, PEERS = "ValueError: bad batch", "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.5]:15236."
SIGTERM = first_failure.SIGTERM


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ([End(1, 1, 5.0, PEERS, 4.9), End(2, 1, 6.0, OWN, 4.0)], 2),
        ([End(1, SIGTERM, 5.0), End(2, 1, 6.0, OWN, 5.5)], 2),
        ([End(1, SIGTERM, 5.0), End(2, 1, 6.0, PEERS, 5.5)], 2),
        ([End(1, 1, 5.0, PEERS, 4.9), End(2, SIGTERM, 6.0, OWN, 4.5)], 2),
        ([End(1, 1, 5.0, PEERS, 4.9), End(2, SIGTERM, 60.0, OWN, 4.5)], 1),
        ([End(1, 1, 6.0, OWN, 5.9), End(2, 1, 6.1, OWN, 5.0)], 2),
        ([End(1, 139, 5.0), End(2, 1, 5.1, OWN, 5.05)], 1),
        ([End(1, None, 5.0), End(2, SIGTERM, 4.0)], 1),
        ([End(1, None, 4.0), End(2, 1, 5.0, OWN, 4.5)], 2),
        ([End(1, None, 4.0), End(2, 1, 5.0, PEERS, 4.5)], 2),
        ([End(1, None, 4.0, OWN, 3.9), End(2, 1, 5.0, PEERS, 4.5)], 1),
        ([End(1, SIGTERM, 5.0), End(2, SIGTERM, 4.0)], 2),
    ],
)
def test_the_first_failure_is_found(ends: list[End], blamed: int) -> None:
    assert first(ends).pid == blamed
    assert first(list(reversed(ends))).pid == blamed


@pytest.mark.parametrize(
    "error",
    [
        PEERS,
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "RuntimeError: [pair.cc:534] Connection reset by peer [::1]:2",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed. Did the remote server crash?",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_errors_of_gloo_nccl_and_the_store_tell_of_a_peer(error: str) -> None:
    assert peer_errors.tells_of_peer(error)
    assert not peer_errors.tells_of_peer(OWN)


def test_agent_and_server_know_the_same_errors() -> None:
    assert first_failure.PEER_IS_GONE == peer_errors.PEER_IS_GONE


class Reports(SilentRendezvous):
    """Notes what was reported."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, object] = {}

    def report_state(self, kind: str, **fields: object) -> None:
        if kind == "failed":
            with self.changed:
                self.failed = fields
                self.changed.notify_all()


PROGRAM = """
import sys, time
sys.stdin.readline()
sys.stderr.write('Traceback (most recent call last):\\n  File "train.py", line 3\\n' + sys.argv[1] + '\\n')
sys.stderr.flush()
time.sleep(float(sys.argv[2]))
raise SystemExit(1)
"""


@pytest.fixture
def silent() -> Iterator[int]:
    target = os.open(os.devnull, os.O_WRONLY)
    yield target
    os.close(target)


KILLED = "print('epoch 3', file=sys.stderr, flush=True); sys.stdin.readline(); os.kill(os.getpid(), 9)"
GPU = "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("explained", "program", "status", "error"),
    [
        ("the kernel killed it", KILLED, 137, "the kernel killed it"),
        ("", f"sys.stdin.readline(); print({GPU!r}, file=sys.stderr, flush=True); sys.exit(1)", 1, GPU),
    ],
)
def test_a_worker_whose_memory_was_used_up_is_reported_with_the_cause(
    silent: int, monkeypatch: pytest.MonkeyPatch, explained: str, program: str, status: int, error: str
) -> None:
    """If the kernel had killed it, its last line of stderr stood there as if it were the cause."""
    monkeypatch.setattr(MemoryKills, "explain", lambda self, status, error: explained)
    stderr, reports = WorkerStderr(), Reports()
    workers = LocalWorkers(reports, generation=1, is_terminating=threading.Event(), stderr=stderr)
    workers.begin()
    pipe = stderr._sources[0] = PipedStderr(3, target=silent)
    pipe.begin()
    with open(pipe.path, "w") as file:
        command = [sys.executable, "-IS", "-c", f"import os, sys; print('begins', file=sys.stderr, flush=True); {program}"]
        process = subprocess.Popen(command, stderr=file, stdin=subprocess.PIPE)
    pipe.close_writer()
    deadline = time.monotonic() + 30
    while not workers._watch.running() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.communicate(b"\n")
    with reports.changed:
        assert reports.changed.wait_for(lambda: bool(reports.failed), 30)
    workers.end()
    failed = {name: reports.failed[name] for name in ("rank", "status", "error", "out_of_memory")}
    assert failed == {"rank": 3, "status": status, "error": error, "out_of_memory": True}
    assert workers.failure is not None
    assert workers.failure.line == error


def test_a_worker_that_ends_later_than_the_peer_that_it_brought_down_is_blamed(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of an agent's two workers to fail takes time to end, and its peer ends of a closed connection before."""
    monkeypatch.setattr("elastic_worker.agent.workers.PEERS_WAIT_S", 30.0)  # a slow machine
    stderr, reports = WorkerStderr(), Reports()
    workers = LocalWorkers(reports, generation=1, is_terminating=threading.Event(), stderr=stderr)
    workers.begin()
    processes = []
    for local, (error, end_s) in enumerate(((PEERS, "0"), (OWN, "0.15"))):
        pipe = PipedStderr(local + 4, target=silent)
        pipe.begin()
        stderr._sources[local] = pipe
        with open(pipe.path, "w") as file:
            command = [sys.executable, "-IS", "-c", PROGRAM, error, end_s]
            processes.append(subprocess.Popen(command, stderr=file, stdin=subprocess.PIPE))
        pipe.close_writer()
    deadline = time.monotonic() + 30
    while len(stderr._pids) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    began_at = time.monotonic()
    for process in reversed(processes):
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        time.sleep(0.05)
    with reports.changed:
        assert reports.changed.wait_for(lambda: bool(reports.failed), 30)
    workers.end()
    for process in processes:
        process.communicate()
    assert (reports.failed["rank"], reports.failed["error"]) == (5, f"{OWN} (train.py:3)")
    at = reports.failed["at"]
    assert isinstance(at, float)
    assert at >= began_at
