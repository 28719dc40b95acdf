"""torchrun starts this instead of a Python interpreter. It passes its command, environment, folder and descriptors to the fork server,
forwards signals to the worker, and ends with the worker's status. If the server refuses, it starts the worker plainly.

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
"""How long to wait for a server that is still importing. It started earlier, so a plain start would hardly be faster."""
STARTED = b"started"
PID = struct.Struct("!i")
ABORTED_AFTER_ITS_END = 1 << 16
"""Sent instead of a wait status: the program had ended with 0, then torch aborted the interpreter during its shutdown."""
NOT_FORWARDED = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ)
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS)


class StartPlainly(Exception):
    """A reason to start plainly."""


def interpreter() -> str:
    """The interpreter of torchrun, our parent, which would start a worker with the same one."""
    parent = "/proc/{}".format(os.getppid())
    with open(parent + "/cmdline", "rb") as file:
        named = os.fsdecode(file.read().split(b"\0", 1)[0])
    if not os.path.basename(named).startswith("python"):
        return sys.executable
    found = os.path.join(os.readlink(parent + "/cwd"), named) if os.path.dirname(named) else shutil.which(named)
    return os.path.normpath(found) if found and os.access(found, os.X_OK) else sys.executable


@contextlib.contextmanager
def address_in(folder: str) -> typing.Iterator[str]:
    """The socket's address through a descriptor of its folder, whose path may be too long for an address."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield "/proc/self/fd/{}/socket".format(descriptor)
    finally:
        os.close(descriptor)


def listen_for_signals() -> socket.socket:
    """Make each signal a byte in this socket. Raises OSError if a standard stream is closed, for the socket would take its number."""
    for descriptor in (0, 1, 2):
        os.fstat(descriptor)
    wake_in, wake_out = socket.socketpair()
    wake_out.setblocking(False)
    signal.set_wakeup_fd(wake_out.detach(), warn_on_full_buffer=False)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *NOT_FORWARDED, *FAULTS}:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, take)
    return wake_in


def take(number: int, frame: typing.Optional[types.FrameType]) -> None:
    """Python needs a handler to write the byte."""


def apply_signals(wake: socket.socket) -> None:
    """Apply the default action of signals that arrived: there is no worker yet that could handle them."""
    wake.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for number in wake.recv(256):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, take)


def ask(folder: str, environment: typing.Dict[str, str], wake: socket.socket) -> socket.socket:
    """Pass everything to the server and wait until the worker runs. Raises StartPlainly or OSError if it does not."""
    umask = os.umask(0o077)
    os.umask(umask)
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    request = json.dumps({"arguments": sys.argv[1:], "environment": environment, "umask": umask}).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    with address_in(folder) as address:
        connection.connect(address)
    socket.send_fds(connection, [struct.pack("!I", len(request))], [0, 1, 2, here])
    connection.sendall(request)
    os.close(here)
    wait_for_answer(connection, wake)
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


def wait_for_answer(connection: socket.socket, wake: socket.socket) -> None:
    """Wait. A signal ends the wait as it would end a starting interpreter; after the answer, signals go to the worker."""
    until = time.monotonic() + PATIENCE_S
    while True:
        readable = select.select([connection, wake], [], [], max(0.0, until - time.monotonic()))[0]
        if connection in readable:
            return
        if not readable:
            raise StartPlainly("the fork server did not answer within {:.0f} s".format(PATIENCE_S))
        apply_signals(wake)


def represent(connection: socket.socket, wake: socket.socket) -> int:
    """Forward signals until the worker has ended; returns its wait status."""
    while True:
        readable = select.select([connection, wake], [], [])[0]
        if wake in readable:
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(wake.recv(256))
        if connection in readable:
            try:
                status = connection.recv(4)
            except ConnectionResetError:
                status = b""
            return int(struct.unpack("!i", status)[0]) if len(status) == 4 else int(signal.SIGKILL)


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


def start_plainly(python: str, environment: typing.Dict[str, str], wake: typing.Optional[socket.socket]) -> None:
    if wake is not None:
        apply_signals(wake)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(python, [python, *sys.argv[1:]], environment)


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    python = sys.executable
    wake = None  # type: typing.Optional[socket.socket]
    try:
        python = interpreter()
        wake = listen_for_signals()
        if python != sys.executable:
            raise StartPlainly("torchrun runs under {} and the fork server under {}".format(python, sys.executable))
        connection = ask(os.environ.get("ELASTIC_WARM", ""), environment, wake)
    except (StartPlainly, OSError) as why:
        with contextlib.suppress(OSError):
            os.write(2, "elastic_worker: this worker starts plainly: {}\n".format(why).encode("utf-8", "replace"))
        start_plainly(python, environment, wake)
    else:
        end_as(represent(connection, wake))


if __name__ == "__main__":
    main()
