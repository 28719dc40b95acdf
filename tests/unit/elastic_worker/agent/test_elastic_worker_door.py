"""An agent's door admits its workers only, and a broken rule costs a worker its connection."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastic_worker.agent import door as doors
from elastic_worker.agent.door import LONGEST_BACKLOG, MOST_CONNECTIONS, Connection, Event, WorkerDoor
from elastic_worker.agent.wake import Wake

PATIENCE = 400


class Place:
    """A door whose clock a test sets. This process is a worker unless the test says otherwise."""

    def __init__(self) -> None:
        self.now = 100.0
        self.children = {os.getpid(): 7}
        self.door = WorkerDoor(child_of=lambda pid: self.children.get(pid, 0), clock=lambda: self.now)
        self.wake = Wake()
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.door.path)
        client.settimeout(10)
        self.clients.append(client)
        return client

    def until(self, holds: Callable[[list[Event]], bool]) -> list[Event]:
        """Serve until this holds of all events; return them."""
        events: list[Event] = []
        for _ in range(PATIENCE):
            events += self.door.turn(0.05, self.wake.fileno())
            if holds(events):
                return events
        raise AssertionError(f"not after {PATIENCE} turns: {events}")

    def open(self) -> tuple[socket.socket, Connection]:
        """Return both ends of the connection of a worker that has said something."""
        client = self.connect()
        client.sendall(b'{"t":"hello"}\n')
        ((connection, message),) = self.until(bool)
        assert message == {"t": "hello"}
        return client, connection

    def loses(self, connection: Connection) -> list[Event]:
        """Serve until this connection has ended; return the events before."""
        *before, last = self.until(lambda events: (connection, None) in events)
        assert last == (connection, None)
        return before


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.door.close()
    made.wake.close()
    for client in made.clients:
        client.close()


def test_the_socket_lies_in_a_folder_for_this_user_only_and_goes_with_the_door(place: Place) -> None:
    folder = os.path.dirname(place.door.path)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    place.door.close()
    assert not os.path.exists(folder)


def test_a_long_folder_for_temporary_files_leaves_room_for_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors.tempfile, "gettempdir", lambda: "/tmp/" + "x" * 90)
    made = WorkerDoor(child_of=lambda pid: 0)
    assert len(made.path) < 107
    made.close()


def test_lines_come_out_whole_however_they_are_cut(place: Place) -> None:
    client, connection = place.open()
    text = b"".join(json.dumps({"n": number}).encode() + b"\n" for number in range(5))
    for at in range(0, len(text), 7):
        client.sendall(text[at : at + 7])
        place.door.turn(0, place.wake.fileno()) if at == 0 else None
    events = place.until(lambda events: len(events) == 5)
    assert events == [(connection, {"n": number}) for number in range(5)]


def test_messages_reach_the_worker_and_a_close_ends_the_connection(place: Place) -> None:
    client, connection = place.open()
    place.door.send(connection, {"t": "change", "round": 1})
    assert client.recv(100) == b'{"t":"change","round":1}\n'
    client.close()
    assert place.loses(connection) == []
    place.door.send(connection, {"t": "change", "round": 2})


def test_a_process_that_this_agent_did_not_start_is_sent_away_unread(place: Place) -> None:
    place.children.clear()
    client = place.connect()
    client.sendall(b'{"t":"hello"}\n')
    assert place.door.turn(0.05, place.wake.fileno()) == []
    place.now += 5.0
    ((_, message),) = place.until(bool)
    assert message is None
    assert client.recv(100) == b'{"t":"stranger"}\n'
    with pytest.raises(ConnectionResetError):  # because its hello was not read
        client.recv(10)


def test_a_worker_is_met_as_soon_as_its_stub_says_whom_it_stands_for(place: Place) -> None:
    """The fork server's answer, which names the worker, can reach a busy stub after the worker's hello has reached the agent."""
    place.children.clear()
    client = place.connect()
    client.sendall(b'{"t":"hello"}\n')
    place.door.turn(0.05, place.wake.fileno())
    place.children[os.getpid()] = 7
    ((connection, message),) = place.until(bool)
    assert (connection.child, message) == (7, {"t": "hello"})


def test_another_user_is_sent_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors.os, "getuid", lambda: os.geteuid() + 1)
    client = place.connect()
    ((_, message),) = place.until(bool)
    assert message is None
    assert client.recv(100) == b'{"t":"stranger"}\n'
    assert client.recv(10) == b""


@pytest.mark.parametrize(
    "said",
    [b"no JSON\n", b"[]\n", b"\xff\n", b"[" * 60_000 + b"\n", b'"' + b"x" * doors.LONGEST_LINE + b'"\n', b"x" * (doors.LONGEST_LINE + 1)],
)
def test_a_line_that_is_no_message_costs_the_connection_and_no_other(place: Place, said: bytes) -> None:
    other, kept = place.open()
    client, connection = place.open()
    client.sendall(b'{"t":"at"}\n' + said)
    assert place.loses(connection) == [(connection, {"t": "at"})]
    assert client.recv(10) == b""
    other.sendall(b'{"t":"at"}\n')
    assert place.until(bool) == [(kept, {"t": "at"})]


def test_a_worker_has_twenty_messages_a_second_and_a_burst_of_a_hundred(place: Place) -> None:
    client, connection = place.open()
    client.sendall(99 * b"{}\n")
    place.until(lambda events: len(events) == 99)
    place.now += 1.0
    client.sendall(20 * b"{}\n")
    place.until(lambda events: len(events) == 20)
    client.sendall(b"{}\n")
    assert place.loses(connection) == []


def test_a_worker_that_does_not_read_is_dropped_and_nobody_waits_for_it(place: Place) -> None:
    _, connection = place.open()
    line: dict[str, Any] = {"t": "keys", "items": {"k": "A" * 60_000}}
    sent = 0
    while connection.is_open:
        place.door.send(connection, line)
        sent += 60_000
        assert sent < 2 * LONGEST_BACKLOG
    assert sent > LONGEST_BACKLOG
    assert place.loses(connection) == []


def test_messages_that_a_slow_worker_has_not_read_come_once_it_reads(place: Place) -> None:
    client, connection = place.open()
    for number in range(20):
        place.door.send(connection, {"n": number, "items": "A" * 60_000})
    client.setblocking(False)
    data = b""
    for _ in range(PATIENCE):
        place.door.turn(0.01, place.wake.fileno())
        try:
            data += client.recv(1 << 20)
        except BlockingIOError:
            continue
        if data.count(b"\n") == 20:
            break
    assert [json.loads(line)["n"] for line in data.splitlines()] == list(range(20))


def test_connections_beyond_the_limit_wait_until_another_has_ended(place: Place) -> None:
    clients = [place.open() for _ in range(MOST_CONNECTIONS)]
    late = place.connect()
    late.sendall(b'{"t":"hello"}\n')
    assert place.door.turn(0.1, place.wake.fileno()) == []
    clients[0][0].close()
    events = place.until(lambda events: len(events) == 2)
    assert events[0] == (clients[0][1], None)
    assert events[1][1] == {"t": "hello"}
