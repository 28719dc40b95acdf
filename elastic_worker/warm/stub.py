"""Stand for a worker: torchrun starts this instead of a Python interpreter.

It passes its command, environment, folder and descriptors to the fork server, forwards signals to the worker, and ends with the worker's
status. If the server refuses, it starts the worker plainly.

The file stands alone: a copy with a `#!` line runs, with the options -I -S.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
import types
import typing

OURS = ("PYTHON_EXEC", "ELASTIC_WARM")
PATIENCE_S = 120.0
"""How long to wait for a server that uses no CPU time. While it imports, waiting is faster than a plain start, which would import too."""
LOOK_S = 5.0
STARTED = b"started"
PID = struct.Struct("!i")
ABORTED_AFTER_ITS_END = 1 << 16
"""Sent instead of a wait status: the program had ended with 0, then torch aborted the interpreter during its shutdown."""
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)
DOOR, GENERATION = "ELASTIC_WORLD", "ELASTIC_GENERATION"
"""Names of elastic_worker.settings: the agent's door, and the world, which is "0" for a worker that waits for its first one."""
ENDED, AGAIN = "ended", "again"
"""A stub tells the agent that its worker has ended, and the agent may ask for another one."""
AGENT_GONE = 3
"""Status of a worker whose agent is gone (elastic_worker.training.control)."""
DOOR_S = 5.0
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
RAISED_BY_WRITES = (signal.SIGPIPE, signal.SIGXFSZ)
FORWARDED = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, *FAULTS, *RAISED_BY_WRITES}
"""All signals except those that cannot be caught and those that the kernel may raise for what this process itself does."""


class StartPlainly(Exception):
    """A reason to start plainly."""


def interpreter() -> str:
    """Return the interpreter of torchrun, our parent, which would start a worker with the same one."""
    parent = "/proc/{}".format(os.getppid())
    with open(parent + "/cmdline", "rb") as file:
        named = os.fsdecode(file.read().split(b"\0", 1)[0])
    if not os.path.basename(named).startswith("python"):
        return sys.executable
    found = os.path.join(os.readlink(parent + "/cwd"), named) if os.path.dirname(named) else shutil.which(named)
    return os.path.normpath(found) if found and os.access(found, os.X_OK) else sys.executable


@contextlib.contextmanager
def address_in(folder: str) -> typing.Iterator[str]:
    """Yield the socket's address through a descriptor of its folder, whose path may be too long for an address."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield "/proc/self/fd/{}/socket".format(descriptor)
    finally:
        os.close(descriptor)


class Signals:
    """The signals of this process: each becomes a byte in a socket. Blocked and ignored ones do too, because the worker may handle them.

    Raises OSError if a standard stream is closed, because the socket would take its number.
    """

    def __init__(self) -> None:
        for descriptor in (0, 1, 2):
            os.fstat(descriptor)
        self.arrived, wake = socket.socketpair()
        self.arrived.setblocking(False)
        wake.setblocking(False)
        self.pending = b""
        """Signals that arrived and were neither applied nor forwarded."""
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
        signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
        for number in FORWARDED:
            signal.signal(number, _note)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked - FORWARDED)

    def collect(self) -> None:
        """Add to `pending` what has arrived."""
        with contextlib.suppress(BlockingIOError):
            self.pending += self.arrived.recv(4096)

    def apply(self) -> None:
        """Apply pending signals as to a starting interpreter: default action, or none. Blocked ones stay pending."""
        waiting = self.pending
        self.pending = bytes(number for number in waiting if number in self.blocked)
        for number in waiting:
            if number not in self.blocked | self.ignored:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                signal.signal(number, _note)

    def restore(self) -> None:
        """Restore handlers and mask. Signals that arrived, or arrive meanwhile, have the effect that they would have had without us."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        self.collect()
        for arrived in self.pending:
            os.kill(os.getpid(), arrived)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)


def _note(number: int, frame: typing.Optional[types.FrameType]) -> None:
    """Python needs a handler to write the byte."""


class Patience:
    """The wait for a process: until it has used no CPU time for PATIENCE_S, or as long if it cannot be seen."""

    def __init__(self, pid: int, *, now: float) -> None:
        self._pid = pid
        self._used = _cpu_time(pid)
        self._since = now

    def is_over(self, *, now: float) -> bool:
        used = _cpu_time(self._pid)
        if used != self._used:
            self._used, self._since = used, now
        return now - self._since > PATIENCE_S


def _cpu_time(pid: int) -> typing.Tuple[str, ...]:
    """User and system time; empty if the process cannot be seen."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            return tuple(file.read().rpartition(")")[2].split()[11:13])
    except OSError:
        return ()


def ask(folder: str, environment: typing.Dict[str, str], signals: Signals) -> socket.socket:
    """Pass everything to the server and wait until the worker runs. Raises StartPlainly or OSError if it does not."""
    umask = os.umask(0o077)
    os.umask(umask)
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    fields = {"arguments": sys.argv[1:], "environment": environment, "umask": umask}
    request = json.dumps({**fields, "blocked": sorted(signals.blocked), "ignored": sorted(signals.ignored)}).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    with address_in(folder) as address:
        connection.connect(address)
    socket.send_fds(connection, [struct.pack("!I", len(request))], [0, 1, 2, here])
    os.close(here)
    wait_for_answer(connection, request, signals)
    answer = connection.recv(len(STARTED))  # no more than that: the worker's status may follow at once
    if answer == STARTED:
        name_after(connection)
    else:
        answer += connection.recv(4096) if answer else b""
        raise StartPlainly(answer.decode("utf-8", "replace") or "the fork server ended")
    connection.settimeout(None)
    return connection


def name_after(connection: socket.socket) -> None:
    """Rename this process to `for PID` of the worker, so that the agent, its parent, finds the worker."""
    pid = connection.recv(PID.size)
    if len(pid) == PID.size:
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("for {}".format(*PID.unpack(pid)))


def wait_for_answer(connection: socket.socket, request: bytes, signals: Signals) -> None:
    """Send the request and wait. A signal before the answer acts as on a starting interpreter; later ones go to the worker."""
    server = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    patience = Patience(server, now=time.monotonic())
    while True:
        asked = [connection] if request else []
        writable = select.select([connection, signals.arrived], asked, [], LOOK_S)[1]
        signals.collect()
        if select.select([connection], [], [], 0)[0]:  # asked after `collect`: what was collected may be meant for the worker
            return
        signals.apply()
        if writable:
            request = request[connection.send(request) :]
        if patience.is_over(now=time.monotonic()):
            raise StartPlainly("the fork server did not answer, and used no CPU time for {:.0f} s".format(PATIENCE_S))


def represent(connection: socket.socket, signals: Signals) -> int:
    """Forward signals until the worker has ended; returns its wait status."""
    while True:
        signals.collect()
        with contextlib.suppress(BrokenPipeError):  # the worker has ended; its status can still be read
            connection.sendall(signals.pending)
        signals.pending = b""
        if connection in select.select([connection, signals.arrived], [], [])[0]:
            try:
                status = connection.recv(4)
            except ConnectionResetError:
                status = b""
            return int(struct.unpack("!i", status)[0]) if len(status) == 4 else int(signal.SIGKILL)


def failed_with(status: int) -> int:
    """Return the worker's status as in a shell if it failed by itself, else 0."""
    if status == ABORTED_AFTER_ITS_END:
        return 0
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status) if os.WEXITSTATUS(status) != AGENT_GONE else 0
    return 0 if os.WTERMSIG(status) in ASKED_TO_END else 128 + os.WTERMSIG(status)


def is_wanted_again(environment: typing.Mapping[str, str], status: int) -> bool:
    """Return whether the agent asks for another worker: if the siblings of a failed one wait for it with the state in memory."""
    failed, path = failed_with(status), environment.get(DOOR, "")
    if not failed or not path or environment.get("LOCAL_WORLD_SIZE", "1") == "1":
        return False
    message = {"t": ENDED, "local_rank": int(environment.get("LOCAL_RANK", "0")), "status": failed}
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(DOOR_S)
            door.connect(path)
            door.sendall(json.dumps(message).encode() + b"\n")
            answer = door.makefile("rb").readline(4096)
            return bool(answer) and json.loads(answer).get("t") == AGAIN
    except (OSError, ValueError, AttributeError):
        return False


def represent_all(connection: socket.socket, environment: typing.Dict[str, str], signals: Signals) -> int:
    """Represent the worker, and each one that takes the place of a failed one. Return the status of the last one."""
    status = represent(connection, signals)
    while is_wanted_again(environment, status):
        connection.close()
        try:
            connection = ask(os.environ.get("ELASTIC_WARM", ""), {**environment, GENERATION: "0"}, signals)
        except (StartPlainly, OSError) as why:
            with contextlib.suppress(OSError):
                os.write(2, "elastic_worker: no other worker starts here: {}\n".format(why).encode("utf-8", "replace"))
            break
        status = represent(connection, signals)
    return status


def end_as(status: int) -> None:
    """End with the worker's status, but without a second core file."""
    if status == ABORTED_AFTER_ITS_END:
        with contextlib.suppress(OSError):
            os.write(
                2,
                b"elastic_worker: aborted (SIGABRT) after the program had ended with 0; this counts as ended with 0\n",
            )
        os._exit(0)
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def start_plainly(python: str, environment: typing.Dict[str, str], signals: typing.Optional[Signals]) -> None:
    for number in RAISED_BY_WRITES:  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    if signals is not None:
        signals.restore()
    os.execve(python, [python, *sys.argv[1:]], environment)


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    python = sys.executable
    signals = None  # type: typing.Optional[Signals]
    try:
        python = interpreter()
        signals = Signals()
        if python != sys.executable:
            raise StartPlainly("torchrun runs under {} and the fork server under {}".format(python, sys.executable))
        connection = ask(os.environ.get("ELASTIC_WARM", ""), environment, signals)
    except (StartPlainly, OSError) as why:
        with contextlib.suppress(OSError):
            os.write(2, "elastic_worker: this worker starts plainly: {}\n".format(why).encode("utf-8", "replace"))
        start_plainly(python, environment, signals)
    else:
        end_as(represent_all(connection, environment, signals))


if __name__ == "__main__":
    main()
