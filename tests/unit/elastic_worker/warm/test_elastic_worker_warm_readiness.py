"""An agent joins once its fork server can start workers, and never waits for one that is gone."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_worker.warm.readiness import wait_for_imports


@contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        yield listener


def test_the_agent_waits_until_the_server_takes_connections(tmp_path: Path) -> None:
    done = threading.Event()

    def wait() -> None:
        wait_for_imports({"ELASTIC_WARM": str(tmp_path)})
        done.set()

    with listening(tmp_path) as listener:
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not done.wait(0.3), "the server still imports"
        listener.accept()[0].close()
        assert done.wait(30)
        waiting.join()


def test_a_server_that_never_answers_is_waited_for_within_a_bound(tmp_path: Path) -> None:
    with listening(tmp_path):
        began = time.monotonic()
        wait_for_imports({"ELASTIC_WARM": str(tmp_path)}, longest_s=0.2)
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("state", ["no fork server", "no folder", "no socket", "nobody listens"])
def test_without_a_server_nothing_is_waited_for(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "gone" if state == "no folder" else tmp_path
    if state == "nobody listens":
        with listening(tmp_path):
            pass
    wait_for_imports({} if state == "no fork server" else {"ELASTIC_WARM": str(folder)}, longest_s=600)
