"""Workers report to their own agent where it meets its peers in an etcd: over a real socket, with the Reporter that training code uses."""

import json
import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_worker import settings
from elastic_worker.etcd.reports import LONGEST_REPORT, Reports
from elastic_worker.report import Reporter


class Heard:
    """An agent that notes steps and answers the same each time."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.steps: queue.Queue[tuple[int, int]] = queue.Queue()
        self.answer: dict[str, Any] = {"stop": False, "reason": "", "checkpoint_s": None}
        self.reports.begin(lambda generation, step: self.steps.put((generation, step)), lambda: self.answer)


@pytest.fixture
def agent() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.reports.close()


def test_a_worker_reports_to_its_own_agent_and_hears_by_when_it_must_go(agent: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.REPORTS, agent.reports.path)
    monkeypatch.setenv(settings.MEMBER, "w0")
    monkeypatch.setenv(settings.GENERATION, "3")
    agent.answer = {"stop": True, "reason": "w0 must go", "checkpoint_s": 20.0}
    reporter = Reporter.from_environment()
    reporter.send(41, loss=0.5)
    assert agent.steps.get(timeout=30) == (3, 41)
    reporter.send(42)
    assert agent.steps.get(timeout=30) == (3, 42), "the answer to the first one has come by now"
    answer = reporter.send(43)
    assert (answer.stop, answer.reason) == (True, "w0 must go")
    assert 0 < (answer.checkpoint_s or 0) <= 20
    reporter.close()


def test_only_this_user_may_enter_the_folder_and_it_goes_with_the_agent(agent: Heard) -> None:
    folder = Path(agent.reports.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    agent.reports.close()
    assert not folder.exists()


def test_a_long_temporary_folder_leaves_no_room_for_the_socket_so_another_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    reports = Reports()
    assert not reports.path.startswith(str(long))
    assert list(long.iterdir()) == []
    reports.close()


def sent(agent: Heard, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(agent.reports.path)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1000)


@pytest.mark.parametrize(
    "line",
    [b"\n", b"[]\n", b"\xff\n", b"[" * 60_000 + b"\n", b'{"generation": "1", "step": 2}\n', b'{"generation": 1, "step": -2}\n', b"{"],
)
def test_an_invalid_report_ends_its_own_connection_only(agent: Heard, line: bytes) -> None:
    assert sent(agent, line) == b""
    assert agent.steps.empty()
    assert json.loads(sent(agent, b'{"generation": 1, "step": 2}\n')) == agent.answer
    assert agent.steps.get(timeout=30) == (1, 2)


def test_a_report_is_bounded(agent: Heard) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(agent.reports.path)
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            connection.sendall(b"x" * 64 * LONGEST_REPORT)
