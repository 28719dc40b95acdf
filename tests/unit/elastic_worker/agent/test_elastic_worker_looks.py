"""An agent tells the server what its workers do, while the server asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.membership.wire import convert
from elastic_training.rendezvous.engine.messages.doing import Doings
from elastic_worker.agent.looks import MOST_TOLD, Looks
from elastic_worker.agent.view import View
from elastic_worker.agent.workers import LocalWorkers, RankedWorker
from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking.calls import Wait, wait_of

PATIENCE_S = 60.0
SLEEPER = """
import os, sys, time
from elastic_worker import stack_signal
stack_signal.register(os.environ)
def stay():
    time.sleep(600)
stay()
"""


class Presence:
    """The server's requests as a test makes them, and the messages to it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.minor = 3
        self.view = View({})
        self.sent: list[dict[str, object]] = []

    def ask(self, watch: str, generation: int = 7) -> None:
        with self.changed:
            self.view = View({"generation": generation, "size": 2, "watch": watch})
            self.changed.notify_all()

    def send(self, message: dict[str, object]) -> None:
        with self.changed:
            self.sent.append(message)
            self.changed.notify_all()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the thread does, which notifies nobody of all of it."""
        deadline = time.monotonic() + PATIENCE_S
        with self.changed:
            while not holds():
                assert time.monotonic() < deadline, self.sent[-3:]
                self.changed.wait(0.05)


class Workers:
    """The workers of one generation."""

    def __init__(self, pids: list[int], generation: int = 7) -> None:
        self.generation = generation
        self._pids = pids

    def ranked(self) -> list[RankedWorker]:
        return [RankedWorker(local_rank, 10 + local_rank, pid) for local_rank, pid in enumerate(self._pids) if pid]


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[list[int]]:
    """Start two processes that sleep, and yield their pids."""
    program = tmp_path / "stay.py"
    program.write_text(SLEEPER)
    processes = [subprocess.Popen([sys.executable, str(program)]) for _ in range(2)]
    pids = [process.pid for process in processes]
    deadline = time.monotonic() + PATIENCE_S
    while any(wait_of(procfs.call(f"/proc/{pid}")) is not Wait.TIME for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield pids
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def sleeper(sleepers: list[int]) -> int:
    return sleepers[0]


@pytest.fixture
def looks() -> Iterator[tuple[Presence, Looks]]:
    presence = Presence()
    made = Looks(presence, look_s=0.05)  # type: ignore[arg-type]
    made.start()
    yield presence, made
    made.close()


def workers_of(message: dict[str, object]) -> list[dict[str, object]]:
    workers = message["workers"]
    assert isinstance(workers, list)
    return workers


def test_workers_are_described_by_local_rank_while_the_server_asks(looks: tuple[Presence, Looks], sleepers: list[int]) -> None:
    presence, made = looks
    made.begin(Workers([sleepers[0], 0, sleepers[1]]))  # type: ignore[arg-type]
    assert presence.sent == []
    presence.ask("look")
    presence.wait_for(lambda: bool(presence.sent) and int(str(workers_of(presence.sent[-1])[0]["looks"])) >= 4)
    message = presence.sent[-1]
    first, missing, last = workers_of(message)
    assert (first["does"], first["kind"], last["does"]) == ("sleeps", "other", "sleeps")
    assert missing == {"kind": "unknown", "does": "has ended"}
    assert message["generation"] == 7
    assert message.pop("t") == "doings"
    assert len(convert(message, Doings).workers) == 3
    presence.ask("")
    presence.wait_for(lambda: not made._watched)


def test_workers_of_another_generation_are_not_described(looks: tuple[Presence, Looks], sleeper: int) -> None:
    presence, made = looks
    presence.ask("look", generation=8)
    made.begin(Workers([sleeper], generation=7))  # type: ignore[arg-type]
    made.begin(Workers([sleeper], generation=8))  # type: ignore[arg-type]
    presence.wait_for(lambda: bool(presence.sent))
    assert {message["generation"] for message in presence.sent} == {8}


def test_a_worker_that_ends_meanwhile_is_told(looks: tuple[Presence, Looks], sleeper: int) -> None:
    presence, made = looks
    made.begin(Workers([sleeper]))  # type: ignore[arg-type]
    presence.ask("look")
    presence.wait_for(lambda: bool(presence.sent))
    os.kill(sleeper, 9)
    presence.wait_for(lambda: workers_of(presence.sent[-1])[0]["does"] == "has ended")


def test_stacks_are_written_once_for_each_time_the_server_asks(
    looks: tuple[Presence, Looks], sleeper: int, capfd: pytest.CaptureFixture[str]
) -> None:
    presence, made = looks
    made.begin(Workers([sleeper]))  # type: ignore[arg-type]
    presence.ask("write")
    presence.wait_for(lambda: len(presence.sent) > 2)
    written = capfd.readouterr().err
    assert written.count("elastic_worker: rank ") == 1
    assert written.startswith(f"elastic_worker: rank 10 (process {sleeper}) sleeps at stay.py:6:\n")
    assert written.count("line 6 in stay\n") == 1
    assert "line 7 in <module>\n" in written
    presence.ask("look")
    count = len(presence.sent)
    presence.wait_for(lambda: len(presence.sent) > count + 1)
    assert capfd.readouterr().err == ""
    presence.ask("write")
    count = len(presence.sent)
    presence.wait_for(lambda: len(presence.sent) > count + 1)
    assert capfd.readouterr().err.count("elastic_worker: rank 10 ") == 1


def test_an_older_server_hears_nothing(looks: tuple[Presence, Looks], sleeper: int) -> None:
    presence, made = looks
    presence.minor = 2
    made.begin(Workers([sleeper]))  # type: ignore[arg-type]
    presence.ask("look")
    presence.wait_for(lambda: bool(made._watched))
    presence.minor = 3
    presence.wait_for(lambda: bool(presence.sent))
    assert int(str(workers_of(presence.sent[0])[0]["looks"])) >= 1


def test_no_more_workers_are_told_than_a_message_holds(looks: tuple[Presence, Looks], sleeper: int) -> None:
    presence, made = looks
    made.begin(Workers([sleeper] * (MOST_TOLD + 1)))  # type: ignore[arg-type]
    presence.ask("look")
    presence.wait_for(lambda: bool(presence.sent))
    assert len(workers_of(presence.sent[0])) == MOST_TOLD


def test_local_workers_have_ranks_and_child_processes_of_a_look_are_none_of_them() -> None:
    """A look may run py-spy. The agent took its end for that of a worker."""
    started, go = threading.Event(), threading.Event()
    others: list[subprocess.Popen[bytes]] = []

    def look() -> None:
        go.wait()
        others.append(subprocess.Popen(["sleep", "600"], env={"RANK": "9", "LOCAL_RANK": "9"}))
        started.set()
        threading.Event().wait(PATIENCE_S)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    assert thread.native_id is not None
    workers = LocalWorkers(object(), generation=1, is_terminating=threading.Event(), rank=2, except_of={thread.native_id})  # type: ignore[arg-type]
    go.set()
    assert started.wait(PATIENCE_S)
    own = subprocess.Popen(["sleep", "600"], env={"RANK": "5", "LOCAL_RANK": "1"})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "RANK" not in procfs.environment(own.pid):
            assert time.monotonic() < deadline
        assert workers.ranked() == [RankedWorker(1, 5, own.pid)]
        workers.move(2, rank=3, local_size=2)
        assert workers.ranked() == [RankedWorker(1, 7, own.pid)]
    finally:
        for process in (own, *others):
            process.kill()
            process.wait()
