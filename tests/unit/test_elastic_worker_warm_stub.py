"""The stub in torchrun's hands against a fork server played by the test: what it makes of answers and signals, whenever they come."""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import elastic_worker

STUB = Path(elastic_worker.__file__).parent / "warm" / "stub.py"
PATIENCE_S = 60.0
STARTED = b"started" + struct.pack("!i", 12345)
EXITED_WITH_7 = struct.pack("!i", 7 << 8)


class Played:
    """The fork server's end of one stub."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self._listener.bind(f"/proc/self/fd/{opened}/socket")  # a folder's own path may be longer than an address
        os.close(opened)
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self.stub = subprocess.Popen(
            [sys.executable, "-IS", STUB, "-u", "-c", "print('plain')"],
            env=os.environ | {"ELASTIC_WARM": str(folder)},
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
    """Both in one piece, as on a busy machine: the stub took that for a refusal and started the program a second time, plainly."""
    played.connection.sendall(STARTED + EXITED_WITH_7)
    assert played.end() == (7, "", "")


def test_a_signal_from_the_moment_of_the_answer_on_is_the_workers(played: Played) -> None:
    """A stub that was still to install its handlers died of the signal, and its worker with it."""
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
