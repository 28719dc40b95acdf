"""Real torchrun agents whose workers change worlds in process, at a server that a test plays.

The workers play the library's part at the door: they say hello, come to the boundary and form, but train nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_rendezvous import Said, ScriptedServer
from torch_agents import Agents, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]

WORKER = """
import json, os, signal, socket, sys
name = os.environ["ELASTIC_MEMBER"]
local_rank = int(os.environ["LOCAL_RANK"])
def note(what):
    with open(os.path.join(sys.argv[3], "notes"), "a") as file:
        file.write(f"{name} {local_rank} {os.getpid()} {os.environ['ELASTIC_GENERATION']} {what}\\n")
if os.path.exists(os.path.join(sys.argv[3], "crash-" + name)):
    sys.exit(9)
door = socket.socket(socket.AF_UNIX)
door.connect(os.environ.pop("ELASTIC_WORLD"))
def say(kind, **fields):
    door.sendall(json.dumps({"t": kind, **fields}).encode() + b"\\n")
say("hello", pid=os.getpid(), local_rank=local_rank, torch="", step=None)
note("hello")
for line in door.makefile("rb"):
    message = json.loads(line)
    round, phase = message["round"], message.get("phase")
    if phase == "abort":
        say("at", round=round, step=7)
    elif phase == "form":
        note("rank {rank} of {size} in generation {generation}".format(**message))
        say("formed", round=round)
    elif phase == "run":
        say("done")
        note("done")
        sys.exit(0)
os._exit(3)
"""
PATIENCE_S = 100.0
"""Seconds for each wait. A torchrun that waits for agents that are gone takes 300 s."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    made = ScriptedServer(tmp_path)
    made.start()
    yield made
    made.stop()


class Job:
    """The agents of a job, and the server's part in their lives."""

    def __init__(self, folder: Path, server: ScriptedServer, *, library: Path | None = None) -> None:
        self.server = server
        self.agents = Agents(folder, server, job="job", script=WORKER, library=library)  # type: ignore[arg-type]
        self._used: dict[str, int] = {}
        self._warm = {"warm": True} if library is not None else {}

    def next(self, name: str, kind: str) -> Said:
        """Wait for this member's next message of this kind; return it. Later calls look at later messages only."""
        found: list[tuple[int, Said]] = []

        def has_come() -> bool:
            heard = self.server.heard(name)
            found[:] = [(at, said) for at, said in enumerate(heard) if at >= self._used.get(name, 0) and said["t"] == kind]
            return bool(found)

        wait_until(has_come, what=lambda: f"{name} says {kind}\n{self.agents.describe()}", patience_s=PATIENCE_S)
        self._used[name] = found[0][0] + 1
        return found[0][1]

    def start(self, *names: str, workers: int = 1) -> None:
        """Start agents; the server forms the first world from them, and their workers say hello."""
        for name in names:
            self.agents.start(name, nnodes="1:8", workers=workers)
        stores = [self.waits(name) for name in names]
        for rank, name in enumerate(names):
            self.server.view(name, **world(1, rank, len(names), store=stores[0]))
        for name in names:
            assert self.next(name, "started") == {"t": "started", "generation": 1, **self._warm}
            assert self.next(name, "able") == {"t": "able", "generation": 1, "workers": workers}

    def waits(self, name: str) -> str:
        """Wait until this agent is at the barrier for the first time; return the address of its store."""
        store = self.next(name, "join").get("store") or self.next(name, "ready")["store"]
        return str(store)

    def stand_by(self, name: str, *, workers: int = 1) -> None:
        """Start an agent whose workers stand by in a provisional world."""
        self.agents.start(name, nnodes="1:8", workers=workers)
        self.waits(name)
        self.server.view(name, provisional=True)
        assert self.next(name, "able") == {"t": "able", "generation": 0, "workers": workers}
        ready = self.next(name, "ready")
        assert (ready["after"], ready["alive"], ready["round"]) == (0, True, 0)

    def change(self, phase: str, round: int, *names: str, generation: int, **more: object) -> None:
        change: Said = {"round": round, "phase": phase, **more}
        for rank, name in enumerate(names):
            self.server.view(name, **world(generation, rank, len(names)), change=change)

    def form(self, round: int, *names: str, generation: int) -> None:
        """Form a world of these members in process, and let it train, which here is the end."""
        self.change("form", round, *names, generation=generation, step=7, donors=[0])
        for name in names:
            assert self.next(name, "formed") == {"t": "formed", "round": round}
            assert self.next(name, "started") == {"t": "started", "generation": generation}
        self.change("run", round, *names, generation=generation)

    def ends(self, name: str) -> int:
        """Wait until torchrun has ended; return its status."""
        process = self.agents.processes[name]
        wait_until(lambda: process.poll() is not None, what=lambda: f"{name} ends\n{self.agents.describe()}", patience_s=PATIENCE_S)
        assert process.returncode is not None
        return process.returncode

    def notes(self) -> list[str]:
        return (self.agents.folder / "notes").read_text().splitlines()

    def pids(self, name: str) -> list[int]:
        """Return the processes of this agent's workers that said hello, in the order of their local ranks."""
        said = sorted(note.split()[1:3] for note in self.notes() if note.startswith(f"{name} ") and note.endswith(" hello"))
        return [int(pid) for _, pid in said]


def world(generation: int, rank: int, size: int, *, store: str = "127.0.0.1:1") -> dict[str, Any]:
    return {"generation": generation, "id": f"{generation}-s", "rank": rank, "size": size, "store": store}


@pytest.fixture
def job(tmp_path: Path, server: ScriptedServer) -> Iterator[Job]:
    made = Job(tmp_path / "job", server)
    yield made
    made.agents.stop()


def test_a_job_that_grew_in_process_ends_without_waiting_for_the_agents_it_began_with(job: Job) -> None:
    """Torchrun waits at its end for as many agents as its world had when it started the workers: 3 here, and 1 in the newcomer."""
    job.start("w0", "w1", "w2")
    job.stand_by("w3")
    everybody = ("w0", "w1", "w2", "w3")
    job.change("abort", 1, *everybody[:3], generation=1)
    for name in everybody[:3]:
        ready = job.next(name, "ready")
        assert (ready["after"], ready["alive"], ready["round"], ready["step"]) == (1, True, 1, 7)
    job.form(1, *everybody, generation=2)
    for name in everybody:
        assert job.next(name, "finished") == {"t": "finished", "generation": 2}
        assert job.ends(name) == 0
    assert [note.split()[3] for note in job.notes() if note.endswith("hello")] == ["1", "1", "1", "0"], "the newcomer began in no world"
    assert sorted(note.split("rank ")[1] for note in job.notes() if "rank" in note) == [f"{r} of 4 in generation 2" for r in range(4)]


@pytest.mark.parametrize("lost", ["w0", "w2"])
def test_a_job_that_shrank_in_process_ends_without_waiting_for_the_lost_agent(job: Job, lost: str) -> None:
    """Rank 0 hosts the store in which torchrun counts the agents that have ended. Without w2 the count never reaches three."""
    job.start("w0", "w1", "w2")
    left = [name for name in ("w0", "w1", "w2") if name != lost]
    before = [job.pids(name) for name in left]
    job.agents.kill_pod(lost)
    job.change("abort", 1, *left, generation=1)
    for name in left:
        assert job.next(name, "ready")["alive"]
    job.form(1, *left, generation=2)
    for name in left:
        assert job.ends(name) == 0
    assert [job.pids(name) for name in left] == before, "no worker was started again"


def test_workers_that_stand_at_the_boundary_are_restarted_if_the_server_asks_for_it(job: Job) -> None:
    """The next rung: as today, torchrun stops its workers and comes to the barrier."""
    job.start("w0")
    job.change("abort", 1, "w0", generation=1)
    assert job.next("w0", "ready")["alive"]
    job.server.view("w0", reform="the group could not be formed three times", grace_s=30)
    ready = job.next("w0", "ready")
    assert "alive" not in ready
    assert ready["after"] == 1
    job.server.view("w0", **world(2, 0, 1, store=ready["store"]))
    assert job.next("w0", "able")["generation"] == 2
    assert len(set(job.pids("w0"))) == 2
    assert not [said for said in job.server.heard("w0") if said["t"] == "failed"]


def test_a_worker_that_fails_before_it_comes_into_a_world_ends_its_container(job: Job) -> None:
    """The controller counts ends of containers outside a world. torchrun would start the worker again and again, and nobody would count."""
    (job.agents.folder / "crash-w0").touch()
    job.agents.start("w0", nnodes="1:8")
    job.waits("w0")
    job.server.view("w0", provisional=True)
    failed = job.next("w0", "failed")
    assert (failed["generation"], failed["status"]) == (0, 9)
    assert job.ends("w0") == 1
    assert "ending with status 1: a worker failed before it came into a world" in job.agents.output("w0")


def test_a_stopped_worker_is_killed_and_counts_as_failed(job: Job) -> None:
    job.start("w0", workers=2)
    pid = job.pids("w0")[1]
    os.kill(pid, signal.SIGSTOP)
    failed = job.next("w0", "failed")
    assert (failed["generation"], failed["status"], failed["rank"]) == (1, 137, 1)
    assert "it was stopped (state T)" in failed["error"]


def test_warm_workers_come_in_through_the_door_and_a_new_server_learns_their_state(tmp_path: Path, server: ScriptedServer) -> None:
    """Their parent is the fork server, and torchrun's child is a stub that says whom it stands for."""
    job = Job(tmp_path / "warm", server, library=tmp_path / "library")
    try:
        job.start("w0", "w1", workers=2)
        assert set(job.pids("w0")).isdisjoint(job.agents.worker_pids("w0")), "they are not warm"
        job.change("abort", 4, "w0", "w1", generation=1)
        for name in ("w0", "w1"):
            assert job.next(name, "ready")["step"] == 7
        job.server.break_connection("w1")
        join = job.next("w1", "join")
        told = {name: join[name] for name in ("ready", "alive", "round", "step", "workers")}
        assert told == {"ready": True, "alive": True, "round": 4, "step": 7, "workers": 2}
        assert join["held"]["round"] == 4
        job.form(4, "w0", "w1", generation=2)
        for name in ("w0", "w1"):
            assert job.ends(name) == 0
        assert sorted(note.split("rank ")[1] for note in job.notes() if "rank" in note) == [f"{r} of 4 in generation 2" for r in range(4)]
    finally:
        job.agents.stop()
