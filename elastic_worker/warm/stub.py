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
import typing

OURS = ("PYTHON_EXEC", "ELASTIC_WARM")
PATIENCE_S = 120.0
"""How long to wait for a server that is still importing. It began before us, so a plain start would hardly be sooner."""
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


def ask(folder: str, environment: typing.Dict[str, str]) -> socket.socket:
    """Hand everything to the server and wait until the worker runs; raises Odd or OSError where it will not."""
    for descriptor in (0, 1, 2):
        os.fstat(descriptor)
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
    answer = connection.recv(4096)
    if answer != b"started":
        raise Odd(answer.decode("utf-8", "replace") or "the fork server ended")
    connection.settimeout(None)
    return connection


def stand_in(connection: socket.socket) -> int:
    """Forward signals until the worker has ended; returns its wait status."""
    wake_in, wake_out = socket.socketpair()
    wake_out.setblocking(False)
    signal.set_wakeup_fd(wake_out.fileno(), warn_on_full_buffer=False)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *NOT_FORWARDED, *FAULTS}:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, lambda number, frame: None)
    poller = select.poll()
    poller.register(wake_in, select.POLLIN)
    poller.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == wake_in.fileno():
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(wake_in.recv(256))
                continue
            try:
                status = connection.recv(4)
            except ConnectionResetError:
                status = b""
            return int(struct.unpack("!i", status)[0]) if len(status) == 4 else int(signal.SIGKILL)


def end_as(status: int) -> None:
    """End as the worker did, but leave no second core file."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def start_plainly(python: str, environment: typing.Dict[str, str]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(python, [python, *sys.argv[1:]], environment)


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    python = sys.executable
    try:
        python = interpreter()
        if python != sys.executable:
            raise Odd("torchrun runs under {} and the fork server under {}".format(python, sys.executable))
        connection = ask(os.environ.get("ELASTIC_WARM", ""), environment)
    except (Odd, OSError) as why:
        with contextlib.suppress(OSError):
            os.write(2, "elastic_worker: this worker starts plainly: {}\n".format(why).encode("utf-8", "replace"))
        start_plainly(python, environment)
    else:
        end_as(stand_in(connection))


if __name__ == "__main__":
    main()
