"""Plays the agents and the rendezvous server for real training processes, and injects changes of their world.

The door is the one of the contract between a worker and its agent: JSON lines over a Unix socket. One thread serves all workers and
decides; the test's thread injects changes and waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elastic_worker.looking.stopped import StoppedWorkers

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "training_worker.py"
LOOK_S = 0.05
BLIP_S = 0.5
"""Seconds after a complaint until the plane calls the members together again, although none is lost."""
PATIENCE_S = 60.0
SPARE_STEPS = 30
"""Steps from the one that the lab knows to the last one: every rank must learn the number before it is there."""


@dataclass
class Member:
    """A worker that has said hello."""

    pid: int
    connection: socket.socket
    hello: dict
    unread: bytes = b""
    unsent: bytes = b""
    at: dict | None = None
    holds: int | None = None
    is_formed: bool = False
    has_stepped: bool = False
    is_leaving: bool = False
    is_done: bool = False


@dataclass(frozen=True)
class Change:
    """A change as measured, from the event until every rank has made its first step in the new world."""

    kind: str
    size: int
    seconds: float
    phases: dict[str, float]


@dataclass
class Event:
    kind: str
    since: float
    marks: dict[str, float] = field(default_factory=dict)


class Plane:
    """The decisions: who is in the world, when it changes, and who has the state."""

    def __init__(self, path: str, start_size: int, *, plain: str | None = None) -> None:
        self.news = threading.Condition()
        self.members: dict[int, Member] = {}
        self.world: list[int] = []
        self.round = self.generation = 0
        self.phase = "stable"
        self.start_size = start_size
        self.holders: set[int] = set()
        """Workers that had the newest state when the present world began to form."""
        self.changes: list[Change] = []
        self.problems: list[str] = []
        self.unformed: list[str] = []
        self.complaints: list[str] = []
        self.pulled = 0
        self.has_trained = self.is_finishing = False
        self._plain = plain
        self._event: Event | None = None
        self._keys: dict[str, str] = {}
        self._fresh_keys: dict[str, str] = {}
        self.blip_s = BLIP_S
        self._blip_at = 0.0
        self.over_limit = StoppedWorkers().over_limit
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        for member in self.members.values():
            member.connection.close()
        self._listener.close()
        self._selector.close()

    # --- the test's thread

    def note(self, kind: str) -> None:
        with self.news:
            self._event = self._event or Event(kind, time.monotonic())

    def leave(self, pid: int) -> None:
        with self.news:
            if pid in self.members:
                self._event = self._event or Event("leave", time.monotonic())
                self.members[pid].is_leaving = True
                self._settle()

    def is_calm(self) -> bool:
        return self.phase == "stable" and self._event is None and bool(self.world) and all(
            pid in self.members and self.members[pid].has_stepped for pid in self.world
        )  # fmt: skip

    def wait(self, holds: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
        with self.news:
            return self.news.wait_for(holds, within_s)

    def state(self) -> str:
        return f"{self.phase} {self.round} {self.world} " + str(
            {pid: (m.at, m.holds, m.is_formed, m.has_stepped) for pid, m in self.members.items()}
        )

    # --- the thread

    def _serve(self) -> None:
        looked = 0.0
        while not self._is_closed:
            ready = self._selector.select(LOOK_S)
            with self.news:
                for key, events in ready:
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        connection.setblocking(False)
                        self._selector.register(connection, selectors.EVENT_READ, Member(0, connection, {}))
                    else:
                        self._on_ready(key.data, events)
                if self._fresh_keys:
                    self._tell_keys()
                if self._blip_at and time.monotonic() > self._blip_at:
                    self._blip_at = 0.0
                    if self.phase == "stable":
                        self._abort()
                if time.monotonic() > looked + LOOK_S:
                    looked = time.monotonic()
                    for pid in self.over_limit(list(self.members), now=looked):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                self.news.notify_all()

    def _on_ready(self, member: Member, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(member)
        if not events & selectors.EVENT_READ:
            return
        try:
            some = member.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            some = b""
        if not some:
            self._selector.unregister(member.connection)
            member.connection.close()
            self._lose(member)
            return
        *lines, member.unread = (member.unread + some).split(b"\n")
        for line in lines:
            message = json.loads(line)
            getattr(self, "_on_" + message["t"])(member, message)
            self._settle()

    def _send(self, member: Member, message: dict) -> None:
        member.unsent += json.dumps(message).encode() + b"\n"
        self._flush(member)

    def _flush(self, member: Member) -> None:
        with contextlib.suppress(OSError):
            sent = member.connection.send(member.unsent)
            member.unsent = member.unsent[sent:]
        with contextlib.suppress(KeyError, ValueError):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.unsent else 0)
            self._selector.modify(member.connection, wanted, member)

    def _tell(self, member: Member, phase: str, **fields: object) -> None:
        self._send(member, {"t": "change", "round": self.round, "phase": phase, **fields})

    def _tell_keys(self) -> None:
        for pid in self.world:
            if pid in self.members:
                self._send(self.members[pid], {"t": "keys", "round": self.round, "items": self._fresh_keys})
        self._fresh_keys = {}

    def _mark(self, name: str) -> None:
        if self._event:
            self._event.marks[name] = time.monotonic()

    # --- messages

    def _on_hello(self, member: Member, message: dict) -> None:
        member.pid, member.hello = message["pid"], message
        member.at = {"round": None, "step": message["step"]}
        self.members[member.pid] = member
        if self._plain:
            self._send(member, {"t": "change", "round": 0, "phase": "plain", "why": self._plain})

    def _on_holds(self, member: Member, message: dict) -> None:
        if message["round"] == self.round:
            member.holds = message["step"]

    def _on_at(self, member: Member, message: dict) -> None:
        if message["round"] == self.round:
            member.at = message

    def _on_put(self, member: Member, message: dict) -> None:
        if message["round"] == self.round:
            self._keys[message["key"]] = self._fresh_keys[message["key"]] = message["value"]

    def _on_formed(self, member: Member, message: dict) -> None:
        if message["round"] == self.round:
            member.is_formed = True

    def _on_unformed(self, member: Member, message: dict) -> None:
        self.unformed.append(f"round {message['round']} of {self.round}: {message['words']}")
        if message["round"] == self.round and self.phase == "forming":
            self._abort()

    def _on_receives(self, member: Member, message: dict) -> None:
        pass

    def _on_complains(self, member: Member, message: dict) -> None:
        self.complaints.append(message["words"])
        if message["round"] == self.round and self.phase == "stable" and "gloo" in message["words"]:
            self._blip_at = time.monotonic() + self.blip_s

    def _on_stepped(self, member: Member, message: dict) -> None:
        if message["round"] != self.round or self.phase != "stable":
            return
        member.has_stepped = self.has_trained = True
        if self._event and all(pid in self.members and self.members[pid].has_stepped for pid in self.world):
            event, now = self._event, time.monotonic()
            phases = {name: at - event.since for name, at in event.marks.items()}
            self.changes.append(Change(event.kind, len(self.world), now - event.since, phases))
            self._event = None

    def _on_pace(self, member: Member, message: dict) -> None:
        """Let the means of a window pass: nobody here compares ranks."""

    def _on_save(self, member: Member, message: dict) -> None:
        """Let news about saves pass: nobody here tells the user."""

    def _on_done(self, member: Member, message: dict) -> None:
        member.is_done = True
        self.is_finishing = True

    # --- decisions

    def _lose(self, member: Member) -> None:
        if self.members.pop(member.pid, None) is None or member.is_done:
            return
        if member.pid in self.world and not self.is_finishing:
            self._mark("detected")
            self._abort()
        self._settle()

    def _abort(self) -> None:
        self.round += 1
        self.phase = "stopping"
        self._blip_at = 0.0
        for pid in self.world:
            if pid in self.members:
                member = self.members[pid]
                member.at, member.holds, member.is_formed = None, None, False
                self._tell(member, "abort")

    def _settle(self) -> None:
        if self._plain:
            return
        inside = [self.members[pid] for pid in self.world if pid in self.members]
        standby = [one for one in self.members.values() if one.pid not in self.world and one.at is not None]
        if self.phase == "stable" and not self.world:
            if len(standby) >= self.start_size:
                self.round += 1
                # The worker that was started first gives its random weights to the others.
                self._form([], sorted(standby, key=lambda one: one.pid))
            return
        if self.phase == "stable" and not self.is_finishing and (standby or any(one.is_leaving for one in inside)):
            self.phase = "holding"
            self.round += 1
            for member in inside:
                member.at = member.holds = None
                self._tell(member, "hold")
        if self.phase == "holding" and all(one.holds is not None for one in inside):
            self.phase = "stopping"
            step = max(one.holds for one in inside if one.holds is not None)
            self._mark("agreed")
            for member in inside:
                self._tell(member, "stop", step=step)
        if self.phase == "stopping" and inside and all(one.at is not None for one in inside):
            self._form(inside, standby)
        if self.phase == "forming" and all(pid in self.members and self.members[pid].is_formed for pid in self.world):
            self.phase = "stable"
            self._mark("formed")
            for pid in self.world:
                self._tell(self.members[pid], "run")

    def _form(self, inside: list[Member], coming: list[Member]) -> None:
        self._mark("stopped")
        holders = [one for one in inside + coming if one.at and one.at["step"] is not None]
        newest = max((one.at["step"] for one in holders if one.at), default=0)
        holders = [one for one in holders if one.at and one.at["step"] == newest]
        if not holders and self.has_trained:
            self.problems.append("no member has a whole state")
            return
        going = [one for one in inside if one.is_leaving]
        if going and (not holders or all(one.is_leaving for one in holders)):
            going = []  # the leavers alone have the newest state: they stay for one more world
        for member in going:
            os.kill(member.pid, signal.SIGTERM)
            del self.members[member.pid]
            self._selector.unregister(member.connection)
            member.connection.close()
        members = [one for one in inside if one not in going] + coming
        holders = [one for one in holders if one in members] or members[:1]
        self.holders = {one.pid for one in holders}
        self.pulled += sum(one not in holders for one in members if one in inside)
        self.world = [one.pid for one in members]
        self.generation += 1
        self.phase = "forming"
        self._keys = {}
        self._fresh_keys = {}
        secret = secrets.token_hex(16)
        donors = [rank for rank, one in enumerate(members) if one in holders]
        for rank, member in enumerate(members):
            member.is_formed = member.has_stepped = False
            member.at = None
            self._tell(
                member, "form", generation=self.generation, rank=rank, size=len(members), local_rank=0, local_size=1,
                node=rank, nodes=len(members), step=newest, donors=donors, secret=secret, address="127.0.0.1",
            )  # fmt: skip


class Lab:
    """Workers, and the plane that they talk to."""

    def __init__(self, folder: Path, plane: Plane, zygote: subprocess.Popen[str], options: dict) -> None:
        self.folder, self.plane = folder, plane
        self.pids: list[int] = []
        self._zygote = zygote
        self._options = options

    def start(self, **options: object) -> int:
        """Fork a worker, and return its pid."""
        assert self._zygote.stdin
        assert self._zygote.stdout
        environment = {"ELASTIC_WORLD": str(self.folder / "door"), "LOCAL_RANK": "0"}
        chosen = {"seed": 100 + len(self.pids), "environment": environment, "folder": str(self.folder), **self._options, **options}
        self._zygote.stdin.write(json.dumps(chosen) + "\n")
        self._zygote.stdin.flush()
        self.pids.append(int(self._zygote.stdout.readline()))
        return self.pids[-1]

    def start_standing_by(self, kind: str = "add", **options: object) -> int:
        """Fork a worker; the change's time begins when it stands by."""
        pid = self.start(**options)
        assert self.plane.wait(lambda: pid in self.plane.members), self.explain()
        self.plane.note(kind)
        return pid

    def settle(self, within_s: float = PATIENCE_S) -> None:
        """Wait until every rank trains in the newest world."""
        assert self.plane.wait(self.plane.is_calm, within_s), self.explain()

    def begin(self, count: int, **options: object) -> None:
        """Start the first world."""
        for _ in range(count):
            self.start(**options)
        self.settle()

    def kill(self, *pids: int, kind: str = "kill", sign: int = signal.SIGKILL) -> None:
        """Send a signal to workers at the same moment."""
        self.plane.note(kind)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def finish(self, within_s: float = PATIENCE_S) -> list[dict]:
        """Let the workers end their loop, and return the results of those in the last world."""
        self.until((self.folder / "step").exists)
        (self.folder / "draft-until").write_text(str(int((self.folder / "step").read_text()) + SPARE_STEPS))
        (self.folder / "draft-until").replace(self.folder / "until")
        self.until(lambda: all((self.folder / f"result-{pid}").exists() for pid in self.plane.world), within_s)
        return [json.loads((self.folder / f"result-{pid}").read_text()) for pid in self.plane.world]

    def until(self, holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Wait for files of the workers."""
        end = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < end, self.explain()
            time.sleep(0.01)

    def results(self) -> list[dict]:
        """Return the results of all workers that have ended."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("result-*"))]

    def settle_or_end(self) -> None:
        """Wait until every rank trains in the newest world, or has ended its loop."""
        assert self.plane.wait(lambda: self.plane.is_calm() or self.plane.is_finishing), self.explain()

    def reference(self, steps: int, within_s: float = PATIENCE_S) -> list[float]:
        """Return the weights of the same training in a single process."""
        pid = self.start(environment={}, until=steps, compute_s=0.0, seed=self.first_seed)
        self.until(lambda: (self.folder / f"result-{pid}").exists() or (self.folder / f"exit-{pid}").exists(), within_s)
        result = json.loads((self.folder / f"result-{pid}").read_text())
        assert result["wrong"] == 0
        return result["vector"]

    @property
    def first_seed(self) -> int:
        """Return the seed of the worker that gave its weights to the first world."""
        return 100

    def stderr(self, pid: int) -> str:
        """Return the errors of a worker."""
        path = self.folder / f"stderr-{pid}"
        return path.read_text() if path.exists() else ""

    def explain(self) -> str:
        """Return everything that helps to understand a failure, with the stacks of the workers."""
        for pid in self.plane.members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
        time.sleep(0.5)
        errors = "\n".join(f"{pid}: {self.stderr(pid)[-3000:]}" for pid in self.pids if self.stderr(pid))
        return f"{self.plane.state()}\n{self.plane.problems} {self.plane.unformed[-5:]} {self.plane.complaints[-5:]}\n{errors}"


@contextlib.contextmanager
def forking(
    environment: dict[str, str] | None = None, *, python: Path | str = sys.executable, script: Path = WORKER
) -> Iterator[subprocess.Popen[str]]:
    """Start the process from which workers are forked: it imports torch once for all of them."""
    zygote = subprocess.Popen(
        [str(python), str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{WORKER.parent}", **(environment or {})},
        start_new_session=True,
    )
    try:
        assert zygote.stdout
        assert zygote.stdout.readline() == "ready\n"
        yield zygote
    finally:
        zygote.kill()
        zygote.wait()
        for pipe in (zygote.stdin, zygote.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def lab(folder: Path, start_size: int, zygote: subprocess.Popen[str], *, plain: str | None = None, **options: object) -> Iterator[Lab]:
    """Open the door for workers, and end all of them at the end."""
    plane = Plane(str(folder / "door"), start_size, plain=plain)
    one = Lab(folder, plane, zygote, options)
    try:
        yield one
    finally:
        plane.is_finishing = True
        for pid in one.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        plane.close()


@contextlib.contextmanager
def starting(folder: Path, zygote: subprocess.Popen[str]) -> Iterator[Callable[..., Lab]]:
    """Yield a function that starts a lab with a first world of so many workers."""
    with contextlib.ExitStack() as opened:

        def begin(size: int, **options: object) -> Lab:
            one = opened.enter_context(lab(folder, size, zygote, **{"compute_s": 0.02, **options}))
            one.begin(size)
            return one

        yield begin
