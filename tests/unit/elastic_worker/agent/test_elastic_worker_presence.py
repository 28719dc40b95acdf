"""How often an agent comes back to a server, as its connections end in one way or another."""

import json
import socket
import time
from collections.abc import Callable

import pytest

from elastic_worker.agent import presence
from elastic_worker.agent.presence import DENIED_BACK_OFF_S, SILENCE_S, Presence
from elastic_worker.agent.websocket import Broken, Denied
from elastic_worker.settings import Settings


class Connection:
    """An open connection over which the server says one thing, or nothing, and closes."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)
        self._near, self._far = socket.socketpair()
        self._far.send(b"x")
        self.minor = 2
        self.received_at = time.monotonic()
        self.pings = 0

    def fileno(self) -> int:
        return self._near.fileno()

    def send(self, text: str) -> None: ...

    def ping(self) -> None:
        self.pings += 1

    def receive(self) -> list[str]:
        if not self._texts:
            raise Broken("the server closed the connection")
        return [self._texts.pop(0)]

    def close(self) -> None:
        self.drop()

    def drop(self) -> None:
        self._near.close()
        self._far.close()


def waits(monkeypatch: pytest.MonkeyPatch, *attempts: Callable[[], Connection]) -> list[float]:
    """Return the longest waits that follow these attempts."""
    monkeypatch.setattr(Settings, "tls", lambda self: None)
    monkeypatch.setattr("elastic_worker.agent.presence.random.uniform", lambda least, most: most)
    told = Settings(host="h", port=1, job="j", member="m", pod_uid="u", address="a", token="t", ca="")
    agent, found, left = Presence(told, on_signal=lambda number: None), list[float](), list(attempts)

    def wait(seconds: float) -> bool:
        found.append(seconds)
        return not left

    monkeypatch.setattr(agent, "_connect", lambda: left.pop(0)())
    monkeypatch.setattr(agent, "_should_end_after", wait)
    agent._run()
    agent.close()
    return found


def refused() -> Connection:
    raise ConnectionRefusedError


def denied() -> Connection:
    raise Denied(401, "no")


def test_a_server_that_takes_the_connection_and_closes_it_is_not_stormed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose introduction was too long opened 49 TLS connections in 3 seconds: each that opened counted as success."""
    found = waits(monkeypatch, *10 * [Connection])
    assert found[:3] == [0.05, 0.1, 0.2]
    assert found[-1] == DENIED_BACK_OFF_S


def test_after_a_view_the_next_server_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    view = json.dumps({"generation": 1, "id": "1-s"})
    found = waits(monkeypatch, *6 * [Connection], lambda: Connection(view), *3 * [refused])
    assert found[6:9] == [0.05, 0.1, 0.2]


def test_a_server_that_is_away_is_looked_for_often_and_one_that_denies_us_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits(monkeypatch, *10 * [refused])[-1] == 0.5
    assert waits(monkeypatch, *10 * [denied])[-1] == DENIED_BACK_OFF_S


class Silent(Connection):
    """A connection that stands, and says nothing until so many pings have come."""

    def __init__(self, pings: int, then: Callable[["Silent"], object]) -> None:
        super().__init__()
        self._near.recv(1)
        self._left, self._then = pings, then

    def ping(self) -> None:
        super().ping()
        if self.pings == self._left:
            self._then(self)

    def has_been_so_for_long(self) -> None:
        self.received_at -= SILENCE_S + 1

    def ends(self) -> None:
        self._far.send(b"x")


def test_a_server_that_answers_no_ping_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of a server that is lost sends no word of it: the connection stood for a quarter of an hour."""
    monkeypatch.setattr(presence, "BEAT_S", 0.01)
    silent = Silent(3, Silent.has_been_so_for_long)
    assert len(waits(monkeypatch, lambda: silent, refused)) == 2
    assert silent.pings == 3


def test_a_server_that_answers_pings_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "BEAT_S", 0.01)
    quiet = Silent(5, Silent.ends)
    waits(monkeypatch, lambda: quiet)
    assert quiet.pings == 5, "and it beats on"


@pytest.mark.parametrize(("minor", "more"), [(4, {}), (5, {"early": True, "rank": 1, "error": "ValueError"})])
def test_a_server_hears_of_an_early_end_of_a_loop_if_it_knows_the_message(
    monkeypatch: pytest.MonkeyPatch, minor: int, more: dict[str, object]
) -> None:
    monkeypatch.setattr(Settings, "tls", lambda self: None)
    told = Settings(host="h", port=1, job="j", member="m", pod_uid="u", address="a", token="t", ca="")
    agent, sent = Presence(told, on_signal=lambda number: None), list[str]()
    agent.send({"t": "unable", "words": "why", "early": True, "rank": 1, "error": "ValueError"})
    connection = Connection()
    connection.minor = minor
    monkeypatch.setattr(connection, "send", sent.append)
    agent._send_all(connection)  # type: ignore[arg-type]
    assert [json.loads(text) for text in sent] == [{"t": "unable", "words": "why", **more}]
    connection.drop()
    agent.close()


def test_a_failure_is_told_with_the_seconds_since_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "tls", lambda self: None)
    told = Settings(host="h", port=1, job="j", member="m", pod_uid="u", address="a", token="t", ca="")
    agent, sent = Presence(told, on_signal=lambda number: None), list[str]()
    noted = time.monotonic()
    agent.report_state("failed", generation=3, status=1)
    monkeypatch.setattr("elastic_worker.agent.presence.time.monotonic", lambda: noted + 7.0)
    connection = Connection()
    monkeypatch.setattr(connection, "send", sent.append)
    agent._send_all(connection)  # type: ignore[arg-type]
    (said,) = [json.loads(text) for text in sent]
    assert said == {"t": "failed", "generation": 3, "status": 1, "ago_s": pytest.approx(7.0, abs=0.1)}
    agent.announce_ready(after=3, store="a:1")
    assert agent._introduction()["failed_ago_s"] == pytest.approx(7.0, abs=0.1)
    assert agent._outbox.pop() == {"t": "ready", "after": 3, "store": "a:1"}
    agent.announce_ready(after=3, store="a:1", killed=2)
    assert agent._outbox.pop()["killed"] == 2
    connection.drop()
    monkeypatch.undo()
    agent.close()
