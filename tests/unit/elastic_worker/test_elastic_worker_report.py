"""Reporting never holds training up, whatever the way to the server is like."""

import json
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.local.installation import ensure_installation
from elastic_worker import report
from elastic_worker.report import Answer, Reporter, _Server
from elastic_worker.settings import Settings

STEPS = 20


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("installation")
    ensure_installation(folder, addresses=())
    return (folder / "ca.crt").read_text()


def settings(ca: str, *, host: str = "127.0.0.1", port: int = 1) -> Settings:
    return Settings(host=host, port=port, job="job", member="w0", pod_uid="u", address="127.0.0.1", token="t", ca=ca)


@pytest.fixture
def silent() -> Iterator[int]:
    """Yield the port of a server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def send_steps(reporter: Reporter) -> None:
    for step in range(STEPS):
        assert reporter.send(step, loss=0.5) == Answer()


def test_a_server_that_accepts_and_never_answers_is_not_waited_for(ca: str, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce steps that waited a second for the answer. Here a wait would last an hour, beyond the test's own time limit."""
    monkeypatch.setattr(report, "TIMEOUT_S", 3600.0)
    reporter = Reporter(settings(ca, port=silent), least_gap_s=0)
    send_steps(reporter)
    reporter.close()


def test_a_resolver_that_blocks_is_not_waited_for(ca: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce steps of 20 seconds without DNS: the name was resolved between the steps. Here it blocks until all steps are done."""
    released = threading.Event()

    def blocked(*args: object, **kwargs: object) -> None:
        released.wait()
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", blocked)
    reporter = Reporter(settings(ca, host="rendezvous.invalid"), least_gap_s=0)
    try:
        send_steps(reporter)
    finally:
        released.set()
        reporter.close()


def test_the_newest_report_is_the_one_that_goes_out_and_failures_are_followed_by_longer_pauses(
    ca: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    came = threading.Semaphore(0)

    def post(self: _Server, body: str) -> dict[str, object]:
        tried.append(body)
        came.release()
        if len(tried) < 3:
            raise ConnectionRefusedError
        return {"stop": True, "reason": "because", "checkpoint_s": 30.0}

    monkeypatch.setattr(_Server, "post", post)
    monkeypatch.setattr(report, "LEAST_GAP_S", 0.05)
    reporter = Reporter(settings(ca), least_gap_s=0)
    for step in range(STEPS):
        reporter.send(step)
    step = STEPS
    while len(tried) < 3:
        step += 1
        reporter.send(step)
        came.acquire(timeout=10)
    deadline = time.monotonic() + 10
    while not reporter.send(step).stop and time.monotonic() < deadline:
        time.sleep(0.01)
    answer = reporter.send(step)
    reporter.close()
    assert (answer.stop, answer.reason) == (True, "because")
    assert 20 < (answer.checkpoint_s or 0) < 30, "the seconds that are left pass here too"
    assert '"step": 0' not in tried[1], "what was not sent in time is not sent any more"


def test_a_value_that_is_no_number_is_refused_at_the_call(ca: str) -> None:
    with pytest.raises(TypeError):
        Reporter(settings(ca)).send(1, loss=object())  # type: ignore[arg-type]


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[dict[str, Any]]":
    """Collect the reports that reach the server, which answers nothing."""
    came: queue.Queue[dict[str, Any]] = queue.Queue()

    def post(self: _Server, body: str) -> dict[str, object]:
        came.put(json.loads(body))
        return {}

    monkeypatch.setattr(_Server, "post", post)
    return came


def test_a_loss_that_is_not_finite_does_not_keep_the_step_from_the_server(ca: str, bodies: "queue.Queue[dict[str, Any]]") -> None:
    """JSON has no NaN. The server refused such reports, so a job whose loss was NaN had no steps and heard no notice."""
    reporter = Reporter(settings(ca), least_gap_s=0)
    reporter.send(3, loss=float("nan"), other=float("inf"), samples=12)
    assert bodies.get(timeout=30) == {"member": "w0", "generation": 0, "step": 3, "values": {"samples": 12.0}}
    reporter.close()


@pytest.mark.parametrize("left", ["soon", [], {}, 10**400])
def test_an_invalid_answer_counts_as_no_answer(ca: str, monkeypatch: pytest.MonkeyPatch, left: object) -> None:
    """It made the next call of `send` fail, inside the training loop."""
    came = threading.Semaphore(0)

    def post(self: _Server, body: str) -> dict[str, object]:
        came.release()
        return {"stop": True, "checkpoint_s": left}

    monkeypatch.setattr(_Server, "post", post)
    monkeypatch.setattr(report, "LEAST_GAP_S", 0.01)
    reporter = Reporter(settings(ca), least_gap_s=0)
    reporter.send(1)
    assert came.acquire(timeout=30)
    reporter.send(2)
    assert came.acquire(timeout=30), "the first answer has been read"
    assert reporter.send(3) == Answer()
    reporter.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, ca: str) -> Iterator[dict[str, str]]:
    """Return the environment of a worker at the rendezvous server, with nothing of it set."""
    whole = {
        "PET_RDZV_BACKEND": "elastic",
        "PET_RDZV_ENDPOINT": "127.0.0.1:1",
        "PET_RDZV_ID": "job",
        "ELASTIC_TOKEN": "t",
        "ELASTIC_CA": ca,
        "ELASTIC_MEMBER": "w0",
        "ELASTIC_GENERATION": "4",
    }
    for name in (*whole, "ELASTIC_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    report._of_this_process.cache_clear()
    yield whole
    report._of_this_process.cache_clear()


def test_one_call_reports_at_the_rendezvous_server(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, bodies: "queue.Queue[dict[str, Any]]"
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert report.report(7, loss=0.5) == Answer()
    assert bodies.get(timeout=30) == {"member": "w0", "generation": 4, "step": 7, "values": {"loss": 0.5}}
    report._of_this_process().close()


@pytest.mark.parametrize("backend", ["", "c10d", "static", "elastic-etcd"])
def test_one_call_does_nothing_if_nobody_takes_reports(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    """A new thread would show that something is sent. An agent of elastic-etcd may have found no place for its socket."""
    before = threading.active_count()
    if backend:
        monkeypatch.setenv("PET_RDZV_BACKEND", backend)
    assert [report.report(step, loss=0.5) for step in range(3)] == [Answer()] * 3
    assert threading.active_count() == before
    assert not Reporter.from_environment().is_heard
    assert not caplog.records, "this is no mistake"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ELASTIC_TOKEN", "", "ELASTIC_TOKEN"),
        ("ELASTIC_CA", "no certificate", ""),
        ("PET_RDZV_ENDPOINT", "nowhere", "nowhere"),
        ("ELASTIC_GENERATION", "four", "four"),
    ],
)
def test_a_broken_environment_costs_the_reports_and_not_the_training(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str, words: str
) -> None:
    for known, given in {**environment, name: value}.items():
        monkeypatch.setenv(known, given)
    with caplog.at_level(logging.WARNING):
        assert [report.report(step) for step in range(3)] == [Answer()] * 3
    assert len(caplog.records) == 1
    assert "reports no steps" in caplog.text
    assert words in caplog.text


@pytest.mark.parametrize("fault", ["silent", "blocked"])
def test_a_process_ends_though_its_reports_are_stuck(ca: str, silent: int, tmp_path: Path, fault: str) -> None:
    """Send reports that would be stuck for an hour."""
    program = """
import socket, sys, time
from elastic_worker import report
report.TIMEOUT_S = 3600.0
from elastic_worker.report import Reporter
from elastic_worker.settings import Settings
if sys.argv[2] == "blocked":
    socket.getaddrinfo = lambda *args, **kwargs: time.sleep(3600)
told = Settings(host="127.0.0.1", port=int(sys.argv[1]), job="j", member="w0", pod_uid="u", address="a", token="t", ca=open("ca").read())
reporter = Reporter(told)
reporter.send(1)
time.sleep(0.2)
reporter.send(2)
"""
    (tmp_path / "ca").write_text(ca)
    arguments = [sys.executable, "-c", program, str(silent), fault]
    ended = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=100, env={"PYTHONPATH": str(Path.cwd())})
    assert ended.returncode == 0, ended.stderr
