"""The exec client of MPI launchers, apart from a cluster: frames, statuses, and what it says where it cannot work."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_worker import kubectl


@pytest.fixture
def ends() -> Iterator[tuple[kubectl.WebSocket, socket.socket]]:
    """The client, and the server's end of its connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(30)
        yield kubectl.WebSocket(ours, b""), theirs


def frame(payload: bytes, kind: int = kubectl.BINARY, *, final: bool = True) -> bytes:
    """As a server sends it: unmasked."""
    head = bytes([(0x80 if final else 0) | kind])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    return head + bytes([126]) + struct.pack("!H", len(payload)) + payload


def test_a_message_in_pieces_is_one_message_and_a_ping_between_them_is_answered(ends: tuple[kubectl.WebSocket, socket.socket]) -> None:
    client, server = ends
    server.sendall(frame(b"\x01ab", final=False) + frame(b"?", kubectl.PING) + frame(b"c" * 200, kubectl.CONTINUED))
    assert client.receive() == b"\x01ab" + b"c" * 200
    first, second = server.recv(2)
    mask, masked = server.recv(4), server.recv(1)
    assert (first & 0x0F, second & 0x7F, bytes([masked[0] ^ mask[0]])) == (kubectl.PONG, 1, b"?")


def test_the_end_of_the_conversation_is_not_an_error_and_a_broken_line_is(ends: tuple[kubectl.WebSocket, socket.socket]) -> None:
    client, server = ends
    server.sendall(frame(b"", kubectl.CLOSE))
    assert client.receive() is None
    server.sendall(frame(b"\x01half")[:-2])
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(kubectl.ExecError, match="the connection broke"):
        client.receive()


def test_the_commands_status_is_read_from_the_servers_words() -> None:
    failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "137"}]}}
    assert kubectl.exit_status({"status": "Success"}) == 0
    assert kubectl.exit_status(failed) == 137
    with pytest.raises(kubectl.ExecError, match="container is gone"):
        kubectl.exit_status({"status": "Failure", "message": "container is gone"})


def test_the_launcher_does_not_wait_for_itself(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(f"{socket.gethostname()} slots=1\njob-worker-0 slots=2\n\njob-worker-1 slots=2\n")
    assert kubectl.hosts(str(hostfile)) == ["job-worker-0", "job-worker-1"]


def test_installed_it_is_a_program_that_says_what_it_needs(tmp_path: Path) -> None:
    kubectl.install(str(tmp_path))
    kubectl.install(str(tmp_path))  # an init container may run twice
    program = tmp_path / "kubectl"
    assert os.access(program, os.X_OK)
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl"]
    outside = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    said = subprocess.run([program, "exec", "pod", "--", "true"], env=outside, capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert "no service account token" in said.stderr
