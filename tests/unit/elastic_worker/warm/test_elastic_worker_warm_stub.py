"""Play the fork server against a stub that torchrun started. Answers and signals come at any time."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import elastic_worker
from elastic_worker.warm import stub as stub_module

STUB = Path(elastic_worker.__file__).parent / "warm" / "stub.py"
PATIENCE_S = 60.0
STARTED = b"started" + struct.pack("!i", 12345)
EXITED_WITH_7 = struct.pack("!i", 7 << 8)


PRINTS_ITS_SIGNALS = """
import signal
print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))
print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), sorted(map(int, signal.sigpending())))
"""


def in_an_odd_place() -> None:
    """Ignore and block signals, like nohup, a shell's background, and a parent that blocks a signal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2])


class Played:
    """The fork server's end of one stub. `first` is code that runs in the stub's process before it."""

    def __init__(
        self, folder: Path, *, first: str = "", program: str = "print('plain')", preexec_fn: Callable[[], None] | None = None
    ) -> None:
        self.folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self._listener.bind(f"/proc/self/fd/{opened}/socket")  # a folder's own path may be longer than an address
        os.close(opened)
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self.stub = subprocess.Popen(
            [
                sys.executable,
                "-IS",
                "-c",
                f"{first}\nimport runpy\nrunpy.run_path({str(STUB)!r}, run_name='__main__')",
                "-u",
                "-c",
                program,
            ],
            env=os.environ | {"ELASTIC_WARM": str(folder)},
            cwd=folder,
            preexec_fn=preexec_fn,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(PATIENCE_S)
        head, descriptors, _, _ = socket.recv_fds(self.connection, 4, 4)
        for descriptor in descriptors:
            os.close(descriptor)
        size = struct.unpack("!I", head)[0]
        while size > 0:
            size -= len(self.connection.recv(size))

    def end(self) -> tuple[int, str, str]:
        out, error = self.stub.communicate(timeout=PATIENCE_S)
        return self.stub.returncode, out, error

    def wait_until_delivered(self, number: signal.Signals) -> None:
        """Wait until the stub handles this signal and no signal is pending any more."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lines = Path(f"/proc/{self.stub.pid}/status").read_text().splitlines()
            sets = dict(line.split(":", 1) for line in lines)
            if int(sets["SigCgt"], 16) >> (number - 1) & 1 and not int(sets["ShdPnd"], 16):
                return
            assert time.monotonic() < deadline, sets
            time.sleep(0.01)

    def close(self) -> None:
        self.stub.kill()
        self.stub.communicate()
        self.connection.close()
        self._listener.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    server = Played(tmp_path)
    yield server
    server.close()


def test_a_worker_that_ends_before_its_stub_has_read_the_answer_is_not_run_again(played: Played) -> None:
    """Answer and end came in one piece, as on a busy machine. The stub took that for a refusal and started the program a second time."""
    played.connection.sendall(STARTED + EXITED_WITH_7)
    assert played.end() == (7, "", "")


def test_a_signal_from_the_moment_of_the_answer_on_is_the_workers(played: Played) -> None:
    """A stub that had not yet installed its handlers died of the signal, and so did its worker."""
    played.connection.sendall(STARTED)
    played.stub.send_signal(signal.SIGUSR1)
    assert played.connection.recv(1) == bytes([signal.SIGUSR1])
    played.connection.sendall(EXITED_WITH_7)
    assert played.end() == (7, "", "")


def test_a_signal_before_the_answer_ends_the_stub_as_it_ends_an_interpreter_that_starts(played: Played) -> None:
    played.stub.send_signal(signal.SIGWINCH)
    played.stub.send_signal(signal.SIGTERM)
    assert played.end() == (-signal.SIGTERM, "", "")
    assert played.connection.recv(1) == b""


def test_a_refusal_starts_the_program_plainly_and_says_why(played: Played) -> None:
    played.connection.sendall(b"it would differ")
    status, out, error = played.end()
    assert (status, out) == (0, "plain\n")
    assert error == "elastic_worker: this worker starts plainly: it would differ\n"


def test_the_end_of_the_server_before_its_answer_starts_the_program_plainly(played: Played) -> None:
    played.connection.close()
    status, out, error = played.end()
    assert (status, out) == (0, "plain\n")
    assert "starts plainly" in error


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Played]:
    server = Played(tmp_path, program=PRINTS_ITS_SIGNALS, preexec_fn=in_an_odd_place)
    yield server
    server.close()


def test_signals_that_torchrun_ignores_or_blocks_reach_the_worker_which_may_handle_them(odd: Played) -> None:
    """A worker that handled SIGHUP never got it under nohup: the stub found it ignored and did not forward it. A test hung that way."""
    odd.connection.sendall(STARTED)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR2, signal.SIGABRT, signal.SIGCONT):
        odd.stub.send_signal(number)
        assert odd.connection.recv(1) == bytes([number])
    odd.connection.sendall(EXITED_WITH_7)
    assert odd.end() == (7, "", "")


def test_a_blocked_signal_from_before_the_answer_waits_for_the_worker_and_an_ignored_one_is_ignored(odd: Played) -> None:
    for number in (signal.SIGHUP, signal.SIGUSR2):
        odd.stub.send_signal(number)
    odd.wait_until_delivered(signal.SIGUSR2)
    odd.connection.sendall(STARTED)
    assert signal.SIGUSR2 in odd.connection.recv(256)


def test_a_plain_start_has_the_signals_that_torchrun_gave_it(odd: Played) -> None:
    """The program also gets the pending signal. SIGHUP was sent while it was ignored, so it has no effect."""
    for number in (signal.SIGHUP, signal.SIGUSR2):
        odd.stub.send_signal(number)
    odd.connection.sendall(b"it would differ")
    blocked = int(signal.SIGUSR2)
    status, out, _ = odd.end()
    assert (status, out) == (0, f"{signal.SIG_IGN!s} {signal.SIG_IGN!s}\n[{blocked}] [{blocked}]\n")


SIGNALLED_AT_EXEC = """
import os, signal
execute = os.execve
def signalled(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    execute(*arguments)
os.execve = signalled
"""


def test_a_signal_just_before_a_plain_start_is_not_lost(tmp_path: Path) -> None:
    """The stub had applied the arrived signals and kept its handlers. They swallowed a SIGTERM that came before the new interpreter."""
    played = Played(tmp_path, first=SIGNALLED_AT_EXEC)
    try:
        played.connection.sendall(b"it would differ")
        assert played.end()[:2] == (-signal.SIGTERM, "")
    finally:
        played.close()


SLOW_AFTER_A_SIGNAL = """
import os, select, time
look = select.select
def slow(*arguments):
    found = look(*arguments)
    if len(arguments[0]) == 2 and arguments[0][1] in found[0]:
        open('woken', 'w').close()
        while not os.path.exists('go on'):
            time.sleep(0.01)
    return found
select.select = slow
"""


def test_a_signal_after_the_answer_goes_to_the_worker_even_if_an_earlier_one_is_still_being_handled(tmp_path: Path) -> None:
    """The stub was woken by a harmless signal. Before it read that, the worker started and a SIGTERM came: it killed stub and worker."""
    played = Played(tmp_path, first=SLOW_AFTER_A_SIGNAL)
    try:
        played.stub.send_signal(signal.SIGWINCH)
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "woken").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        played.connection.sendall(STARTED)
        played.stub.send_signal(signal.SIGTERM)
        played.wait_until_delivered(signal.SIGTERM)
        (tmp_path / "go on").touch()
        assert signal.SIGTERM in played.connection.recv(256)
        played.connection.sendall(EXITED_WITH_7)
        assert played.end() == (7, "", "")
    finally:
        played.close()


def test_a_signal_ends_a_stub_whose_request_the_server_does_not_read(tmp_path: Path) -> None:
    """A request longer than a socket's buffer blocked the stub for two minutes, and the stub applied no signal meanwhile."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    listener.bind(f"/proc/self/fd/{opened}/socket")
    os.close(opened)
    listener.listen()
    listener.settimeout(PATIENCE_S)
    environment = os.environ | {"ELASTIC_WARM": str(tmp_path)} | {f"LONG_{index}": "x" * 100_000 for index in range(12)}
    stub = subprocess.Popen([sys.executable, "-IS", STUB, "-u", "-c", "pass"], env=environment, stdin=subprocess.DEVNULL)
    try:
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE_S)
        connection.recv(4, socket.MSG_PEEK)
        stub.send_signal(signal.SIGTERM)
        assert stub.wait(PATIENCE_S) == -signal.SIGTERM
        connection.close()
    finally:
        stub.kill()
        stub.wait()
        listener.close()


WORKS = """
import sys, time
for line in sys.stdin:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    print()
"""


def test_a_server_is_waited_for_as_long_as_it_uses_the_cpu() -> None:
    """An import took longer than two minutes on a busy machine. A plain start, which imports too, came later still."""
    with subprocess.Popen([sys.executable, "-u", "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        patience = stub_module.Patience(server.pid, now=0.0)
        for turn in range(1, 4):
            print(file=server.stdin, flush=True)
            server.stdout.readline()
            assert not patience.is_over(now=turn * 2 * stub_module.PATIENCE_S)
        server.stdin.close()
    assert not patience.is_over(now=1000.0), "its end is the last change that is seen"
    assert patience.is_over(now=1001.0 + stub_module.PATIENCE_S)
