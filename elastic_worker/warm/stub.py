"""What torchrun starts in place of a Python interpreter: hands its command, environment, folder and descriptors to the fork server, then
forwards signals to the worker and ends as it ended. Where the server does not take it, it becomes a plain start.

It stands alone: a copy with a `#!` line is what runs, with the options -I -S.
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
"""How long to wait for a server that is still importing. It began before us, so a plain start would hardly be sooner."""
STARTED = b"started"
PID = struct.Struct("!i")
ABORTED_AFTER_ITS_END = 1 << 16
"""In place of a wait status: the program had ended with 0, and then torch aborted the interpreter on its way out."""
NOT_FORWARDED = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ)
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS)


class Odd(Exception):
    """A reason to start plainly."""


def interpreter() -> str:
    """The interpreter that torchrun, our parent, runs under, and would have started a worker with."""
    parent = "/proc/{}".format(os.getppid())
    with open(parent + "/cmdline", "rb") as file:
        named = os.fsdecode(file.read().split(b"\0", 1)[0])
    if not os.path.basename(named).startswith("python"):
        return sys.executable
    found = os.path.join(os.readlink(parent + "/cwd"), named) if os.path.dirname(named) else shutil.which(named)
    return os.path.normpath(found) if found and os.access(found, os.X_OK) else sys.executable


@contextlib.contextmanager
def address_in(folder: str) -> typing.Iterator[str]:
    """The server's address by way of a descriptor of its folder, for the path itself may be longer than an address can be."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield "/proc/self/fd/{}/socket".format(descriptor)
    finally:
        os.close(descriptor)


def listen_for_signals() -> socket.socket:
    """From now on a signal is a byte in this socket; raises OSError where it would take the place of a closed standard stream."""
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


def obey(wake: socket.socket) -> None:
    """Do what the signals that came do to a process without handlers: there is no worker that could have any."""
    wake.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for number in wake.recv(256):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, take)


def ask(folder: str, environment: typing.Dict[str, str], wake: socket.socket) -> socket.socket:
    """Hand everything to the server and wait until the worker runs; raises Odd or OSError where it will not."""
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
    answer = connection.recv(len(STARTED))  # and no more: the worker's status may follow at once
    if answer == STARTED:
        name_after(connection)
    else:
        answer += connection.recv(4096) if answer else b""
        raise Odd(answer.decode("utf-8", "replace") or "the fork server ended")
    connection.settimeout(None)
    return connection


def name_after(connection: socket.socket) -> None:
    """Be called after the worker, `for PID`: the agent, whose child we are, finds it by that."""
    pid = connection.recv(PID.size)
    if len(pid) == PID.size:
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("for {}".format(*PID.unpack(pid)))


def wait_for_answer(connection: socket.socket, wake: socket.socket) -> None:
    """A signal ends the wait as it would end an interpreter that is starting; once the answer is there it is the worker's to take."""
    until = time.monotonic() + PATIENCE_S
    while True:
        readable = select.select([connection, wake], [], [], max(0.0, until - time.monotonic()))[0]
        if connection in readable:
            return
        if not readable:
            raise Odd("the fork server did not answer within {:.0f} s".format(PATIENCE_S))
        obey(wake)


def stand_in(connection: socket.socket, wake: socket.socket) -> int:
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
    """End as the worker did, but leave no second core file."""
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
        obey(wake)
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
            raise Odd("torchrun runs under {} and the fork server under {}".format(python, sys.executable))
        connection = ask(os.environ.get("ELASTIC_WARM", ""), environment, wake)
    except (Odd, OSError) as why:
        with contextlib.suppress(OSError):
            os.write(2, "elastic_worker: this worker starts plainly: {}\n".format(why).encode("utf-8", "replace"))
        start_plainly(python, environment, wake)
    else:
        end_as(stand_in(connection, wake))


if __name__ == "__main__":
    main()
