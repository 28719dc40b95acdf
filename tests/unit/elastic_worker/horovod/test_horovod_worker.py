"""Check a worker's part that needs no compiled Horovod: it asks for its place, keeps commits and reports progress."""

import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elastic_worker.horovod import commits, joining
from elastic_worker.horovod.commits import Commits
from elastic_worker.horovod.joining import Launcher
from elastic_worker.horovod.progress import Progress

PLACE = {"rank": 2, "size": 3, "local_rank": 0, "local_size": 1, "cross_rank": 2, "cross_size": 3}


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Driver:
    """The launcher's HTTP server, which gives these answers in turn."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[str] = []
        self.given: list[Any] = []
        self.is_checkpoint_asked = False
        driver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                driver.asked.append(self.path)
                if self.path.startswith("/elastic-progress/"):
                    self._answer(200, json.dumps({"checkpoint": driver.is_checkpoint_asked}).encode())
                else:
                    self._answer(*(driver.answers.pop(0) if driver.answers else (404, b"")))

            def do_PUT(self) -> None:
                driver.given.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._answer(200, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environ = {
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.server.server_port),
            "HOROVOD_HOSTNAME": "w2",
            "HOROVOD_LOCAL_RANK": "0",
        }

    @property
    def launcher(self) -> Launcher:
        found = Launcher.of(self.environ)
        assert found is not None
        return found


@pytest.fixture
def driver() -> Iterator[Driver]:
    one = Driver()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()


def test_a_worker_asks_until_it_has_a_place_and_sets_horovods_variables(driver: Driver) -> None:
    driver.answers = [(200, b"{}"), (200, json.dumps({**PLACE, "timeout_s": 10}).encode())]
    found = joining.variables(joining.place(driver.launcher))
    assert driver.asked == ["/elastic-training/w2:0"] * 2
    assert (found["HOROVOD_RANK"], found["HOROVOD_SIZE"], found["HOROVOD_GLOO_TIMEOUT_SECONDS"]) == ("2", "3", "10")


def test_a_worker_whose_world_is_lost_ends(driver: Driver) -> None:
    driver.answers = [(200, b'{"error": "a worker was lost"}')]
    with pytest.raises(RuntimeError, match="a worker was lost"):
        joining.place(driver.launcher)


def test_a_timeout_of_the_users_own_stands() -> None:
    assert "HOROVOD_GLOO_TIMEOUT_SECONDS" not in joining.variables({**PLACE, "timeout_s": None})


def test_a_launcher_that_knows_no_places_changes_nothing(driver: Driver) -> None:
    assert joining.variables(joining.place(driver.launcher)) == {}
    assert len(driver.asked) == 1


def test_a_process_that_no_elastic_horovodrun_has_started_has_no_launcher(driver: Driver) -> None:
    assert Launcher.of({}) is None
    assert Launcher.of({**driver.environ, "HOROVOD_ELASTIC": "0"}) is None
    assert Launcher.of({**driver.environ, "HOROVOD_GLOO_RENDEZVOUS_PORT": ""}) is None


def test_a_lost_launcher_is_asked_a_few_times_only(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "AGAIN_S", 0.0)
    launcher = driver.launcher._replace(port=1)
    assert joining.place(launcher) == {}


def test_progress_is_sent_and_a_checkpoint_is_asked_for_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_worker.horovod.progress.LEAST_GAP_S", 0.01)
    progress = Progress(driver.launcher)
    progress.send(7, {"loss": 0.5})
    until(lambda: driver.given == [{"step": 7, "values": {"loss": 0.5}}])
    assert not progress.is_checkpoint_asked()
    driver.is_checkpoint_asked = True
    asked: list[bool] = []

    def is_asked() -> bool:
        progress.send(8, {})
        asked.append(progress.is_checkpoint_asked())
        return asked[-1]

    until(is_asked)
    for _ in range(20):
        progress.send(9, {})
        time.sleep(0.01)
    assert not progress.is_checkpoint_asked(), "it is asked for still, not again"


def stored(path: Path, log: list[str]) -> Commits:
    return Commits(str(path), lambda content, file: pickle.dump(content, file), pickle.load, log.append)


def test_the_next_process_reads_the_newest_commit(tmp_path: Path) -> None:
    log: list[str] = []
    first = stored(tmp_path / "commits", log)
    for number in range(1, 30):
        first.keep(number, {"step": number})
    assert first.flush(20.0)
    assert stored(tmp_path / "commits", log).newest() == (29, {"step": 29})
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["commit"]
    assert log == []


@pytest.mark.parametrize("text", [b"", b"5", b"x\n", b"5\nnot a pickle"])
def test_a_damaged_commit_does_not_count_and_is_logged(tmp_path: Path, text: bytes) -> None:
    log: list[str] = []
    (tmp_path / "commit").write_bytes(text)
    assert stored(tmp_path, log).newest() == (0, None)
    assert len(log) == 1


def test_a_commit_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    log: list[str] = []
    (tmp_path / "file").write_text("")
    commits = stored(tmp_path / "file", log)
    commits.keep(1, {})
    assert commits.flush(20.0)
    assert len(log) == 1


def test_a_folder_of_another_users_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    commits = stored(tmp_path, log)
    commits.keep(1, {})
    assert commits.flush(20.0)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert commits.newest() == (0, None)
    assert "another user's" in log[0]


def test_each_worker_of_a_machine_has_a_folder_of_its_own() -> None:
    environ = {"ELASTIC_JOB_UID": "u", "HOROVOD_HOSTNAME": "w0", "ELASTIC_COMMITS": "/c"}
    assert commits.folder(environ) == "/c/elastic-commits-u-w0-0"
    assert commits.folder({**environ, "HOROVOD_LOCAL_RANK": "1"}) != commits.folder(environ)
