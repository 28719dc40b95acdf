"""A stub whose worker has failed asks the agent whether to start another one."""

import json
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_worker import settings
from elastic_worker.warm import stub


@pytest.mark.parametrize(
    ("status", "failed"),
    [
        (0, 0),
        (1 << 8, 1),
        (4 << 8, 4),
        (stub.AGENT_GONE << 8, 0),
        (int(signal.SIGKILL), 137),
        (int(signal.SIGSEGV), 139),
        (int(signal.SIGTERM), 0),
        (stub.ABORTED_AFTER_ITS_END, 0),
    ],
)
def test_a_worker_that_was_asked_to_end_has_not_failed(status: int, failed: int) -> None:
    assert stub.failed_with(status) == failed


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(folder) / "world"))
        listener.listen(1)
        yield listener


@pytest.mark.parametrize(
    ("answer", "is_wanted"),
    [(b'{"t":"again"}\n', True), (b"", False), (b'{"t":"stranger"}\n', False), (b"[]\n", False), (b"\xff\n", False)],
)
def test_another_worker_starts_only_if_the_agent_asks_for_it(door: socket.socket, answer: bytes, is_wanted: bool) -> None:
    said: list[object] = []

    def agent() -> None:
        connection, _ = door.accept()
        with connection, connection.makefile("rb") as lines:
            said.append(json.loads(lines.readline()))
            connection.sendall(answer)

    thread = threading.Thread(target=agent)
    thread.start()
    environment = {settings.WORLD: door.getsockname(), "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    assert stub.is_wanted_again(environment, 9) is is_wanted
    thread.join()
    assert said == [{"t": "ended", "local_rank": 3, "status": 137}]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {settings.WORLD: "/nowhere/world", "LOCAL_WORLD_SIZE": "4"},
        {settings.WORLD: "/nowhere/world", "LOCAL_WORLD_SIZE": "1"},
    ],
    ids=["no door", "agent is gone", "no siblings"],
)
def test_without_an_agent_or_siblings_the_stub_ends_with_its_worker(environment: dict[str, str]) -> None:
    assert not stub.is_wanted_again(environment, 9)


def test_the_names_that_the_stub_repeats_are_those_of_the_library() -> None:
    """The stub is a file that stands alone, so it cannot import them."""
    assert (stub.DOOR, stub.GENERATION) == (settings.WORLD, settings.GENERATION)
