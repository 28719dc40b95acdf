"""The messages between an agent's workers and a rendezvous server, through the door and the presence."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastic_worker import settings
from elastic_worker.agent import in_process as module
from elastic_worker.agent.in_process import NO_DOOR, InProcess, transfer_secret
from elastic_worker.agent.presence import Presence
from elastic_worker.agent.view import View
from elastic_worker.agent.workers import LocalWorkers

Said = dict[str, Any]
TOLD = settings.Settings(host="h", port=1, job="job-uid", member="m", pod_uid="u", address="10.0.0.7", token="t", ca="")


class Store:
    """The agent's store, which knows how many workers there are."""

    def __init__(self, local_size: int) -> None:
        self.local_size = local_size
        self.is_detached = False

    def detach(self) -> None:
        self.is_detached = True


class Workers:
    """Workers that this test plays, in its own process."""

    def __init__(self, generation: int) -> None:
        self.generation, self.rank = generation, -1

    def child_of(self, pid: int) -> int:
        return pid if pid == os.getpid() else 0

    def can_replace(self, status: int) -> bool:
        return status == 9

    def note_replaced(self, child: int, status: int) -> None:
        self.replaced = (child, status)

    def use_library(self, child: int) -> None:
        self.at_door = child

    def move(self, generation: int, *, rank: int, local_size: int) -> None:
        self.generation, self.rank = generation, rank


class Worker:
    """The worker's end of a connection."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.settimeout(20)
        self._lines = self._socket.makefile("rb")

    def say(self, kind: str, **fields: object) -> None:
        self._socket.sendall(json.dumps({"t": kind, **fields}).encode() + b"\n")

    def hear(self) -> Said | None:
        """Return the next message, None at the end of the connection."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def secret(generation: int, round: int) -> str:
    return transfer_secret("t", job="job-uid", generation=generation, round=round)


class Agent:
    """An agent without torch and without a server: a test sends it views, and reads its messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, minor: int = 2) -> None:
        monkeypatch.setattr(settings.Settings, "tls", lambda self: None)
        monkeypatch.delenv(settings.WORLD, raising=False)
        self.presence = Presence(TOLD, on_signal=lambda number: None)
        self.presence.minor = minor
        self.in_process = InProcess(self.presence, address=TOLD.address, secret=secret)
        self.sent: list[Said] = []
        self.opened: list[Worker] = []

    def begin(self, generation: int, *, local_size: int = 1) -> None:
        self.workers, self.store = Workers(generation), Store(local_size)
        self.in_process.begin(self.workers, self.store)  # type: ignore[arg-type]

    def worker(self, local_rank: int = 0, step: int | None = None) -> Worker:
        made = Worker(os.environ[settings.WORLD])
        self.opened.append(made)
        made.say("hello", pid=os.getpid(), local_rank=local_rank, torch="2.13.0", step=step)
        return made

    def view(self, **fields: object) -> None:
        """Let the server send this view."""
        assert not self.presence._receive([json.dumps(fields)])

    def send(self, text: str) -> None:
        self.sent.append(json.loads(text))

    def tells(self, *kinds: str) -> list[Said]:
        """Wait for messages of these kinds, in this order; return them."""
        deadline = time.monotonic() + 30
        while len(self.sent) < len(kinds) and time.monotonic() < deadline:
            self.presence._send_all(self)  # type: ignore[arg-type]
            time.sleep(0.005)
        taken, self.sent = self.sent, []
        assert [message["t"] for message in taken] == list(kinds)
        return taken

    @property
    def minor(self) -> int:
        return self.presence.minor

    def introduction(self) -> Said:
        with self.presence.changed:
            fields, _ = self.presence.introduce()
            return dict(self.presence._introduction(), **fields)


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def new(**options: int) -> Agent:
        made.append(Agent(monkeypatch, **options))
        return made[-1]

    yield new
    for agent in made:
        agent.in_process.close()
        agent.presence.close()
        for worker in agent.opened:
            worker.close()


def change(round: int, phase: str, **fields: object) -> Said:
    return {"round": round, "phase": phase, **fields}


def test_a_world_goes_on_in_process_from_one_to_the_next(new: Callable[..., Agent]) -> None:
    agent = new()
    agent.presence.announce_ready(after=0, store="10.0.0.7:99")
    agent.tells("ready")
    world = {"id": "3-s", "generation": 3, "rank": 1, "size": 3, "store": "a:1"}
    agent.view(**world)
    agent.presence.enter(agent.presence.view)
    agent.begin(3)
    worker = agent.worker(step=12)
    assert agent.tells("able") == [{"t": "able", "generation": 3, "workers": 1, "step": 12}]
    agent.view(**world, change=change(4, "abort"))
    assert worker.hear() == {"t": "change", "round": 4, "phase": "abort"}
    worker.say("at", round=4, step=11)
    ready = {"t": "ready", "after": 3, "store": "10.0.0.7:99", "alive": True, "round": 4, "step": 11}
    assert agent.tells("ready") == [ready]
    said = agent.introduction()
    assert (said["ready"], said["alive"], said["round"], said["step"], said["workers"]) == (True, True, 4, 11, 1)
    assert (said["held"]["generation"], said["held"]["round"]) == (3, 4)

    after = {"id": "4-s", "generation": 4, "rank": 0, "size": 2, "store": "a:2"}
    agent.view(**after, change=change(4, "form", step=12, donors=[1]))
    form = worker.hear()
    assert form is not None
    assert (form["generation"], form["rank"], form["size"], form["step"], form["donors"]) == (4, 0, 2, 12, [1])
    key = hmac.new(b"t", b"elastic state transfer|job-uid|4|4", hashlib.sha256).hexdigest()
    assert (form["secret"], form["address"]) == (key, "10.0.0.7")
    worker.say("put", round=4, key="0//cpu//0/0", value="QUJD")
    assert agent.tells("put") == [{"t": "put", "round": 4, "key": "0//cpu//0/0", "value": "QUJD"}]
    assert not agent.presence._receive([json.dumps({"keys": {"round": 4, "items": {"0//cpu//0/1": "REVG"}}})])
    assert worker.hear() == {"t": "keys", "round": 4, "items": {"0//cpu//0/1": "REVG"}}
    worker.say("formed", round=4)
    assert agent.tells("formed", "started") == [{"t": "formed", "round": 4}, {"t": "started", "generation": 4}]
    agent.view(**after, change=change(4, "run"))
    assert worker.hear() == {"t": "change", "round": 4, "phase": "run"}
    worker.say("stepped", round=4, step=13)
    assert agent.tells("stepped") == [{"t": "stepped", "generation": 4, "step": 13}]

    assert (agent.workers.generation, agent.workers.rank, agent.store.is_detached) == (4, 0, True)
    said = agent.introduction()
    assert not said["ready"]
    assert {name: said["held"][name] for name in ("id", "generation", "rank", "size", "store", "round")} == {**after, "round": 4}


def test_a_newcomer_stands_by_in_a_provisional_world(new: Callable[..., Agent]) -> None:
    agent = new()
    agent.presence.announce_ready(after=0, store="10.0.0.7:99")
    agent.tells("ready")
    agent.view(provisional=True)
    assert agent.in_process.can_begin()
    agent.begin(0, local_size=2)
    workers = [agent.worker(rank) for rank in range(2)]
    able, ready = agent.tells("able", "ready")
    assert able == {"t": "able", "generation": 0, "workers": 2}
    assert ready == {"t": "ready", "after": 0, "store": "10.0.0.7:99", "alive": True, "round": 0}
    assert agent.introduction()["provisional"] is True, "a new server must not take these processes for those of a former world"
    agent.view(id="9-s", generation=9, rank=1, size=2, store="a:1", change=change(7, "form", step=50, donors=[0]))
    forms = [worker.hear() for worker in workers]
    assert [form["rank"] for form in forms if form] == [2, 3]
    assert "provisional" not in agent.introduction()
    assert agent.workers.generation == 9
    assert not agent.in_process.is_astray(agent.presence.view)


def test_a_worker_that_breaks_a_rule_makes_its_member_unable_and_nothing_else(
    new: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = new()
    agent.begin(3, local_size=2)
    first, second = agent.worker(0), agent.worker(1)
    agent.tells("able")
    first.say("leave", reason="I want another member to go")
    assert first.hear() is None
    assert agent.tells("unable") == [{"t": "unable", "words": "the connection of local rank 0 to its agent has ended"}]
    agent.view(generation=3, change=change(1, "abort"))
    assert second.hear() == {"t": "change", "round": 1, "phase": "abort"}, "the other worker is not to blame"


def test_the_workers_of_the_world_before_lose_their_connections(new: Callable[..., Agent]) -> None:
    agent = new()
    agent.begin(3)
    former = agent.worker()
    agent.tells("able")
    agent.in_process.stop()
    agent.in_process.end()
    assert former.hear() is None
    agent.begin(4)
    agent.worker()
    assert agent.tells("able") == [{"t": "able", "generation": 4, "workers": 1}]


def test_a_failure_in_the_world_before_counts_in_the_world_that_began_meanwhile(new: Callable[..., Agent]) -> None:
    """The server formed the next world before it heard of the failure. It ignores failures of former worlds."""
    agent = new()
    agent.view(id="3-s", generation=3, rank=0, size=1)
    agent.presence.enter(agent.presence.view)
    agent.presence.report_state("started", generation=3)
    agent.presence.report_state("failed", generation=3, status=9, at=time.monotonic())
    agent.tells("started", "failed")
    agent.view(id="4-s", generation=4, rank=0, size=1, change=change(2, "form"))
    agent.presence.move(agent.presence.view)
    (failed,) = agent.tells("failed")
    assert (failed["generation"], failed["status"]) == (4, 9)
    agent.presence.announce_ready(after=4, store="a:1")
    agent.view(id="5-s", generation=5, rank=0, size=1, change=change(3, "form"))
    agent.presence.enter(agent.presence.view)
    agent.presence.report_state("failed", generation=4, status=9)
    assert agent.tells("ready", "failed")[1]["generation"] == 4, "that world was left at the barrier"


def test_a_worker_that_ends_just_as_its_world_changes_has_failed_in_the_new_one(new: Callable[..., Agent]) -> None:
    agent = new()
    agent.view(id="3-s", generation=3, rank=0, size=1)
    agent.presence.enter(agent.presence.view)
    agent.view(id="4-s", generation=4, rank=0, size=1, change=change(2, "form"))
    agent.presence.move(agent.presence.view)
    agent.presence.report_state("failed", generation=3, status=9)
    assert agent.tells("failed")[0]["generation"] == 4


@pytest.mark.parametrize(
    ("view", "is_astray"),
    [
        ({}, False),
        ({"generation": 3}, False),
        ({"generation": 4}, True),
        ({"generation": 4, "change": change(0, "plain")}, True),
        ({"generation": 4, "change": change(9, "form")}, False),
        ({"generation": 4, "change": change(9, "abort")}, False),
    ],
)
def test_living_workers_in_a_world_that_nobody_told_them_of_are_astray(new: Callable[..., Agent], view: Said, is_astray: bool) -> None:
    agent = new()
    agent.begin(3)
    assert not agent.in_process.is_astray(View({"generation": 4})), "workers without the library are nobody's concern"
    agent.worker()
    agent.tells("able")
    assert agent.in_process.is_astray(View(view)) is is_astray


@pytest.mark.parametrize("minor", [3, 4])
def test_workers_measure_their_pace_while_a_server_that_knows_it_asks(new: Callable[..., Agent], minor: int) -> None:
    agent = new(minor=minor)
    world = {"id": "3-s", "generation": 3, "rank": 0, "size": 1, "store": "a:1", "pace_s": 5.0}
    agent.view(**world)
    agent.begin(3)
    worker = agent.worker(step=12)
    agent.tells("able")
    if minor >= 4:
        assert worker.hear() == {"t": "pace", "every_s": 5.0}
    agent.view(**world, change=change(4, "form", step=12, donors=[0]))
    form = worker.hear()
    assert form is not None
    assert (form["t"], form["phase"]) == ("change", "form"), "an older server is not taken at its word"
    parts = {"compute_s": 0.2, "data_s": 0.0, "outside_s": 0.0, "wait_s": 0.1, "send_s": 0.01}
    worker.say("pace", round=4, steps=25, **parts)
    worker.say("formed", round=4)
    told = agent.tells(*(["paces"] if minor >= 4 else []), "formed", "started")
    if minor >= 4:
        assert (told[0]["generation"], told[0]["workers"][0]["compute_us"], told[0]["workers"][0]["steps"]) == (3, 200_000, 25)
        agent.view(**world | {"pace_s": 0.0}, change=change(4, "run"))
        assert [worker.hear(), worker.hear()] == [{"t": "change", "round": 4, "phase": "run"}, {"t": "pace", "every_s": 0.0}]


@pytest.mark.parametrize("minor", [4, 5])
def test_a_save_that_fails_is_told_to_a_server_that_knows_of_it(new: Callable[..., Agent], minor: int) -> None:
    agent = new(minor=minor)
    agent.view(id="3-s", generation=3, rank=0, size=1, store="a:1")
    agent.begin(3)
    worker = agent.worker(step=10)
    agent.tells("able")
    worker.say("save", step=11, failures=1, words="No space left on device", last=10)
    worker.say("done")
    told = agent.tells(*(["saves"] if minor >= 5 else []), "unable")
    if minor >= 5:
        failed = {"local_rank": 0, "step": 11, "failures": 1, "words": "No space left on device", "last": 10}
        assert told[0] == {"t": "saves", "workers": 1, "failed": [failed]}
        assert told[0] in agent.presence.introduce()[1], "a new server hears of it, too"


def test_a_server_of_the_release_before_gets_no_pace_that_was_on_its_way(new: Callable[..., Agent]) -> None:
    """The new server was replaced by one of the release before, while the message waited for the connection."""
    agent = new(minor=3)
    agent.presence.send({"t": "paces", "generation": 3, "workers": []})
    agent.presence.send({"t": "doings", "generation": 3, "workers": []})
    agent.tells("doings")


def test_an_older_server_gets_no_door(new: Callable[..., Agent]) -> None:
    agent = new(minor=1)
    agent.begin(3)
    assert settings.WORLD not in os.environ


def test_an_agent_without_a_place_for_its_door_says_once_that_it_cannot(new: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**options: object) -> None:
        raise OSError("read-only file system")

    agent = new()
    monkeypatch.setattr(module, "WorkerDoor", nowhere)
    agent.begin(3)
    assert settings.WORLD not in os.environ
    assert not agent.in_process.can_begin()
    assert not agent.in_process.can_begin()
    assert agent.tells("unable") == [{"t": "unable", "words": NO_DOOR}]


def test_workers_end_with_their_agents_door_also_after_a_bug(new: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    agent = new()
    agent.begin(3)
    worker = agent.worker()
    agent.tells("able")
    monkeypatch.setattr(agent.in_process._change, "follow", lambda view: 1 / 0)
    agent.view(generation=3)
    assert worker.hear() is None
    agent.begin(4)
    assert settings.WORLD not in os.environ, "nobody would answer there"


@pytest.mark.parametrize("minor", [1, 2])
def test_without_the_library_an_agent_says_what_it_always_said(
    new: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch, minor: int
) -> None:
    """Two worlds, a failure and the end, message for message as before there were changes in process."""
    agent = new(minor=minor)
    presence = agent.presence
    monkeypatch.setattr("elastic_worker.agent.workers.REPORT_WAIT_S", 0.0)

    def begin(generation: int, rank: int) -> LocalWorkers:
        agent.view(id=f"{generation}-s", generation=generation, rank=rank, size=2, store="a:1")
        presence.enter(presence.view)
        workers = LocalWorkers(presence, generation=generation, is_terminating=module.threading.Event())
        agent.in_process.begin(workers, Store(1))  # type: ignore[arg-type]
        workers._on_start()
        return workers

    introductions = [agent.introduction()]
    presence.announce_ready(after=0, store="10.0.0.7:99")
    introductions.append(agent.introduction())
    first = begin(3, 1)
    first.close()
    agent.in_process.end()
    presence.announce_ready(after=3, store="10.0.0.7:98")
    agent.view(waiting="for the next world")
    introductions.append(agent.introduction())
    begin(4, 0)._on_end(77, 0)
    presence.leave("finished")
    introductions.append(agent.introduction())
    said = agent.tells("ready", "started", "failed", "ready", "started", "finished", "leave")
    assert said[2].pop("ago_s") >= 0
    assert said == [
        {"t": "ready", "after": 0, "store": "10.0.0.7:99"},
        {"t": "started", "generation": 3},
        {"t": "failed", "generation": 3, "detail": "torchrun restarts its workers"},
        {"t": "ready", "after": 3, "store": "10.0.0.7:98"},
        {"t": "started", "generation": 4},
        {"t": "finished", "generation": 4},
        {"t": "leave", "reason": "finished", "by_signal": False},
    ]
    join = {"t": "join", "incarnation": presence._incarnation}
    assert introductions[2].pop("failed_ago_s") >= 0
    third = {"id": "3-s", "generation": 3, "rank": 1, "size": 2, "store": "a:1", "uncounted": []}
    fourth = {"id": "4-s", "generation": 4, "rank": 0, "size": 2, "store": "a:1", "uncounted": []}
    assert introductions == [
        {**join, "ready": False, "store": ""},
        {**join, "ready": True, "store": "10.0.0.7:99"},
        {**join, "ready": True, "store": "10.0.0.7:98", "held": third, "failed": True},
        {**join, "ready": False, "store": "10.0.0.7:98", "held": fourth},
    ]


@pytest.mark.parametrize("by_library", [False, True])
def test_a_failure_of_the_library_is_presented_to_no_new_server_as_the_programs(new: Callable[..., Agent], by_library: bool) -> None:
    agent = new()
    agent.begin(3)
    agent.worker()
    agent.tells("able")
    assert agent.workers.at_door == os.getpid()
    agent.presence.report_state("failed", generation=3, status=4, **({"by_library": True} if by_library else {}))
    agent.presence.announce_ready(after=3, store="10.0.0.7:1")
    assert ("failed" in agent.introduction()) is not by_library


@pytest.mark.parametrize(
    ("status", "local_rank", "answer"), [(9, 0, {"t": "again"}), (1, 0, None), (9, 5, None), (9, "0", {"t": "stranger"})]
)
def test_a_stub_may_start_another_worker_if_its_siblings_wait(
    new: Callable[..., Agent], status: int, local_rank: object, answer: Said | None
) -> None:
    """For the kernel, the stub and its worker are one process in this test."""
    agent = new()
    agent.begin(3, local_size=2)
    workers = [agent.worker(rank) for rank in range(2)]
    agent.tells("able")
    world = {"id": "4-s", "generation": 4, "rank": 0, "size": 1, "store": "a:1"}
    agent.view(**world, change=change(1, "form", step=0, donors=[0]))
    for worker in workers:
        assert worker.hear() is not None
        worker.say("formed", round=1)
    agent.tells("formed", "started")
    agent.view(**world, change=change(1, "run"))
    assert [worker.hear() for worker in workers] == 2 * [{"t": "change", "round": 1, "phase": "run"}]
    if answer is not None:
        agent.in_process._change.workers[0].pid = 1  # else it would have been started without a stub
    workers[0].close()
    stub = Worker(os.environ[settings.WORLD])
    agent.opened.append(stub)
    stub.say("ended", local_rank=local_rank, status=status)
    assert stub.hear() == answer
    if answer == {"t": "again"}:
        assert agent.workers.replaced == (os.getpid(), 9)


def test_a_replaced_worker_is_reported_once_and_a_later_failure_in_addition(new: Callable[..., Agent]) -> None:
    agent = new()
    agent.view(id="3-s", generation=3, rank=0, size=1)
    agent.presence.enter(agent.presence.view)
    agent.presence.report_state("failed", generation=3, status=9, replaced=True)
    agent.presence.report_state("failed", generation=3, status=9, replaced=True)
    agent.tells("failed")
    agent.presence.report_state("failed", generation=3, status=1)
    assert [message["status"] for message in agent.tells("failed")] == [1]


def test_a_replaced_worker_counts_in_no_later_world(new: Callable[..., Agent]) -> None:
    agent = new()
    agent.view(id="3-s", generation=3, rank=0, size=1)
    agent.presence.enter(agent.presence.view)
    agent.presence.report_state("failed", generation=3, status=9, replaced=True)
    agent.tells("failed")
    agent.view(id="4-s", generation=4, rank=0, size=1, change=change(2, "form"))
    agent.presence.move(agent.presence.view)
    agent.tells()
