"""Run the single process that owns a cluster's sandboxes: it holds pods' namespaces, and every container's init is its child.

Node agents ask it over a socket in the file system, and may come and go. It writes the beginning and the end of each container's run into
the run's record file. It knows nothing about the Kubernetes API, and decides only about the process tree after an exit.
"""

import contextlib
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from elastic.local.sandbox import Launch, Mode, Record, Sandbox, SandboxError, groups, init, linux
from elastic.local.sandbox.channel import SOCKET, address_in
from elastic.local.sandbox.clients import Client, Clients
from elastic.local.sandbox.groups import Group, Groups
from elastic.local.sandbox.inputs import Supply, open_console
from elastic.local.sandbox.trial import prove

BEGIN_MS = 5000
"""Milliseconds that `exec` waits for its container to start. A start normally takes a few milliseconds."""


@dataclass(slots=True)
class _Container:
    launch: Launch
    record: Record
    problem: int
    group: Group | None
    supply: Supply


@dataclass(slots=True)
class _Joined:
    """A further process in a container (exec), and the client to notify when it ends."""

    client: Client
    id: int
    container: str
    problem: int


class Holder:
    """Answers one request at a time. Each takes milliseconds."""

    def __init__(self, sandbox: Sandbox, folder: Path, limits: Groups | None) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._containers: dict[int, _Container] = {}
        self._joined: dict[int, _Joined] = {}
        self._clients = Clients(self._selector, self._do, self._left)
        self._stopping = False
        self._name = f"{os.getpid()}-{time.time_ns()}"

    def serve(self) -> None:
        """Run until stopped, and then end everything that was started here first."""
        with _listen(self._folder) as server, _signals() as signals:
            self._selector.register(server, selectors.EVENT_READ, self._clients.accept)
            self._selector.register(signals, selectors.EVENT_READ, self._signalled)
            print("ready", flush=True)
            while not self._stopping:
                for key, _ in self._selector.select():
                    key.data(key.fileobj)
            self._end_everything()

    def _left(self, client: Client) -> None:
        """End the further processes (exec) of a client that has gone, because each serves only this client's connection."""
        self._end_joined(lambda joined: joined.client is client)

    def _end_joined(self, is_meant: Callable[[_Joined], bool]) -> None:
        for pid, joined in self._joined.items():
            if is_meant(joined):
                _kill_tree(pid)

    def _do(self, client: Client, request: dict[str, Any], handed: list[int]) -> dict[str, Any]:
        match request["op"]:
            case "describe":
                return {
                    "mode": self._sandbox.mode.value,
                    "gateway": self._sandbox.gateway,
                    "running": self._running(),
                    "holder": self._name,
                    "limits_memory": self._limits is not None,
                }
            case "follow":
                client.follows = True
                return {}
            case "create":
                known = self._sandbox.adopt_address(request["pod"])
                return {"ip": known or self._sandbox.create(request["pod"], hostname=request["hostname"])}
            case "destroy":
                self._sandbox.destroy(request["pod"])
                return {}
            case "run":
                return self._run(msgspec.convert(request["launch"], Launch))
            case "signal":
                return {"sent": self._signal(request["id"], request["number"], oom=bool(request.get("oom")))}
            case "tree":
                pid = self._init_of(request["id"])
                return {"pids": self._sandbox.tree(pid) if pid else []}
            case "join":
                return self._join(client, request)
            case "leave":
                self._end_joined(lambda joined: joined.client is client and joined.id == request["join"])
                return {}
            case "input":
                return self._lend_input(request["id"], handed)
            case "end_input":
                self._end_input(request["id"])
                return {}
            case "listen":
                handed.append(self._sandbox.listen(request["port"]).detach())
                return {}
            case "dial":
                handed.append(self._sandbox.dial(request["pod"], port=request["port"], inside=request["inside"]).detach())
                return {}
            case other:
                raise ValueError(f"unknown operation {other}")

    def _running(self) -> list[str]:
        return [container.launch.id for container in self._containers.values()]

    def _init_of(self, container: str) -> int | None:
        return next((pid for pid, known in self._containers.items() if known.launch.id == container), None)

    def _run(self, launch: Launch) -> dict[str, Any]:
        if self._init_of(launch.id) is not None:
            return {}
        self._sandbox.check(launch)
        console, supply = open_console(launch.input, os.open(launch.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        problem, ours = self._problem_pipe()
        try:
            group = self._limits.make(launch.id, limit=launch.memory) if self._limits is not None and launch.memory else None
            with groups.entrance(group) as entrance:
                pid = self._sandbox.spawn(launch, console=console, group=entrance, problem=problem)
        except BaseException:
            os.close(ours)
            supply.close()
            raise
        finally:
            console.leave()
            os.close(problem)
        record = Record(id=launch.id, pid=pid, started_at=time.time())
        self._containers[pid] = _Container(launch, record, ours, group, supply)
        _write_record(launch, record)
        return {"pid": pid}

    def _problem_pipe(self) -> tuple[int, int]:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        return theirs, ours

    def _join(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        launch = msgspec.convert(request["launch"], Launch)
        fds, client.fds = tuple(client.fds[:3]), client.fds[3:]
        problem, ours = self._problem_pipe()
        try:
            pid_of_init = self._init_of(launch.id)
            if pid_of_init is None or len(fds) != 3 or not _has_begun(self._containers[pid_of_init].problem):
                raise SandboxError(f"container {launch.id} is not running")
            streams = (fds[0], fds[1], fds[2])
            terminal = bool(request["terminal"])
            with groups.entrance(self._containers[pid_of_init].group) as group:
                pid = self._sandbox.join(launch, init_pid=pid_of_init, streams=streams, terminal=terminal, group=group, problem=problem)
        except (SandboxError, OSError):
            os.close(ours)
            raise
        finally:
            os.close(problem)
            for fd in fds:
                os.close(fd)
        self._joined[pid] = _Joined(client, request["seq"], launch.id, ours)
        return {"pid": pid}

    def _lend_input(self, container: str, handed: list[int]) -> dict[str, Any]:
        pid = self._init_of(container)
        descriptor, is_first = self._containers[pid].supply.lend() if pid is not None else (None, False)
        if descriptor is None:
            raise SandboxError(f"container {container} takes no input")
        handed.append(descriptor)
        return {"first": is_first}

    def _end_input(self, container: str) -> None:
        """Close our end of a container's input. Processes that still have a descriptor of it may continue to write."""
        pid = self._init_of(container)
        if pid is not None:
            self._containers[pid].supply.close()

    def _signal(self, container: str, number: int, *, oom: bool) -> bool:
        pid = self._init_of(container)
        if pid is None:
            return False
        if oom:
            known = self._containers[pid]
            known.record = msgspec.structs.replace(known.record, oom=True)
        if number == signal.SIGKILL:
            self._sandbox.kill(pid)
        else:
            os.kill(pid, number)
        return True

    def _signalled(self, signals: socket.socket) -> None:
        numbers = signals.recv(4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stopping = True
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._ended(pid, init.exit_code(status))

    def _ended(self, pid: int, code: int) -> None:
        container = self._containers.pop(pid, None)
        if container is not None:
            words = _drain(container.problem)
            oom = container.record.oom or (code != 0 and self._ran_out(container))
            record = msgspec.structs.replace(container.record, finished_at=time.time(), exit_code=code, error=words, oom=oom)
            _write_record(container.launch, record)
            self._end_joined(lambda joined: joined.container == container.launch.id)
            container.supply.close()
            self._clients.tell_followers({"ended": container.launch.id})
            if container.group is not None and self._limits is not None:
                self._limits.release(container.group)
        joined = self._joined.pop(pid, None)
        if joined is not None:
            words = _drain(joined.problem)
            self._clients.tell(joined.client, {"joined": joined.id, "exit_code": code, "error": words}, [])
        if self._limits is not None:
            self._limits.tidy()
        if self._sandbox.mode is Mode.LOOPBACK:
            self._end_strays()

    def _ran_out(self, container: _Container) -> bool:
        return container.group is not None and container.group.has_run_out()

    def _end_strays(self) -> None:
        """End processes that became our children because their init was killed. No process may outlive its pod."""
        known = {*self._containers, *self._joined}
        for child, parent in linux.parents().items():
            if parent == os.getpid() and child not in known:
                _kill_tree(child)

    def _end_everything(self) -> None:
        for pid in list(self._containers):
            with contextlib.suppress(ProcessLookupError):
                self._sandbox.kill(pid)
        self._end_joined(lambda joined: True)
        while self._containers or self._joined:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            self._ended(pid, init.exit_code(status))
        self._sandbox.close()
        if self._limits is not None:
            self._limits.close()


def _kill_tree(root: int) -> None:
    """Kill a process tree. Stop it first, because a child forked during the killing would get another parent and survive."""
    stopped: set[int] = set()
    while new := {root, *linux.descendants(root)} - stopped:
        _send(signal.SIGSTOP, new)
        stopped |= new
    _send(signal.SIGKILL, stopped)


def _send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _has_begun(problem: int) -> bool:
    """Return whether the container's main process runs.

    Before that, the init still has the holder's namespaces, and a joining process would enter these.
    """
    poll = select.poll()
    poll.register(problem, select.POLLIN)
    events = dict(poll.poll(BEGIN_MS)).get(problem, 0)
    return bool(events & select.POLLHUP) and not events & select.POLLIN


def _drain(pipe: int) -> str:
    """Return why a process could not start, or nothing. The pipe is small, and its writers are gone or have become the program."""
    try:
        return os.read(pipe, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(pipe)


def _write_record(launch: Launch, record: Record) -> None:
    target = Path(launch.record)
    if not target.parent.is_dir():
        return
    unfinished = target.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.encode(record))
    unfinished.rename(target)


@contextlib.contextmanager
def _listen(folder: Path) -> Iterator[socket.socket]:
    path = folder / SOCKET
    path.unlink(missing_ok=True)
    with address_in(folder) as address, socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        path.chmod(0o600)
        server.listen(64)
        ours = path.stat().st_ino
        yield server
    # If the supervisor of this holder was killed, the next holder may have put its own socket there already.
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == ours:
            path.unlink()


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    yield ours
    signal.set_wakeup_fd(-1)


def make_sandbox(mode: Mode, folder: Path) -> Sandbox:
    if mode is Mode.NETNS:
        from elastic.local.sandbox.netns import Netns

        stage = folder / "stage"
        stage.mkdir(exist_ok=True)
        return Netns(stage)
    from elastic.local.sandbox.loopback import Loopback

    return Loopback(folder)


def main() -> int:
    """Run `python -m elastic.local.sandbox.holder FOLDER MODE`. The cluster's supervisor starts it, and it ends with the supervisor."""
    folder, mode = Path(sys.argv[1]), Mode(sys.argv[2])
    linux.die_with_parent(signal.SIGTERM)
    linux.adopt_orphans()
    limits = groups.find()
    try:
        sandbox = make_sandbox(mode, folder)
        prove(sandbox, folder)
    except (SandboxError, OSError) as error:
        print(f"sandbox {mode.value} cannot be created: {error}; choose another one with --sandbox (docs/laptop.md)", file=sys.stderr)
        return 1
    Holder(sandbox, folder, limits).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
