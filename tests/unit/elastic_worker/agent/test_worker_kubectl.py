"""Check the exec client of MPI launchers without a cluster: WebSocket frames, exit statuses and errors."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_worker.mpi import kubectl


@pytest.fixture
def ends() -> Iterator[tuple[kubectl.WebSocket, socket.socket]]:
    """Yield the client, and the server's end of the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(30)
        yield kubectl.WebSocket(ours), theirs


def frame(payload: bytes, kind: int = kubectl.BINARY, *, final: bool = True) -> bytes:
    """Return a frame as a server sends it, without a mask."""
    head = bytes([(0x80 if final else 0) | kind])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    return head + bytes([126]) + struct.pack("!H", len(payload)) + payload


def received(client: kubectl.WebSocket) -> list[bytes | None]:
    """Return the messages that the client has received. One read is enough, because sent bytes arrive at once on a socket pair."""
    client.fill()
    return list(client.messages())


def unmasked(server: socket.socket) -> tuple[int, bytes]:
    """Return the kind and the unmasked payload of the client's next short frame."""
    first, second = server.recv(2)
    mask, masked = server.recv(4), server.recv(second & 0x7F)
    return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(masked))


def test_fragments_become_one_message_and_a_ping_between_fragments_is_answered(ends: tuple[kubectl.WebSocket, socket.socket]) -> None:
    client, server = ends
    whole = frame(b"\x01ab", final=False) + frame(b"?", kubectl.PING) + frame(b"c" * 200, kubectl.CONTINUED)
    server.sendall(whole[:7])
    assert received(client) == []
    server.sendall(whole[7:])
    assert received(client) == [b"\x01ab" + b"c" * 200]
    assert unmasked(server) == (kubectl.PONG, b"?")


def test_a_close_frame_is_not_an_error_but_a_lost_connection_is(ends: tuple[kubectl.WebSocket, socket.socket]) -> None:
    client, server = ends
    server.sendall(frame(b"", kubectl.CLOSE))
    assert received(client) == [None]
    server.sendall(frame(b"\x01whole") + frame(b"\x01half")[:-2])
    server.shutdown(socket.SHUT_WR)
    client.fill()
    messages = client.messages()
    assert next(messages) == b"\x01whole", "messages before the loss must be delivered"
    with pytest.raises(kubectl.ExecError, match="the connection broke"):
        next(messages)


def test_bytes_that_the_server_does_not_read_are_queued_without_blocking(ends: tuple[kubectl.WebSocket, socket.socket]) -> None:
    client, server = ends
    for _ in range(64):
        client.send(bytes(65536))
    held = len(client.unsent)
    assert held
    server.recv(1 << 20)
    client.flush()
    assert len(client.unsent) < held


def test_the_end_of_input_is_sent_only_to_servers_that_support_half_closing(ends: tuple[kubectl.WebSocket, socket.socket]) -> None:
    client, server = ends
    client.close_stdin()
    assert not client.unsent
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        kubectl.WebSocket(ours, half_closes=True).close_stdin()
        assert unmasked(theirs) == (kubectl.BINARY, bytes([kubectl.CLOSE_STREAM, kubectl.STDIN]))


@contextlib.contextmanager
def watched(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command as the client runs it in a worker: as the leader of a process group, with a pipe to the watcher as input."""
    words = ["/bin/sh", "-c", kubectl.WATCHED, "sh", "/bin/sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, start_new_session=True, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process


def test_a_watched_command_has_empty_input_and_its_outputs_and_status_pass_unchanged() -> None:
    with watched("cat; echo 'a  b'; echo err >&2; exit 7") as process:
        assert process.stdout
        assert process.stderr
        assert process.wait(60) == 7
        assert (process.stdout.read(), process.stderr.read()) == ("a  b\n", "err\n")


def test_the_command_gets_signals_by_name_and_empty_lines_do_nothing() -> None:
    with watched("trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.1; done") as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        print("\nTERM", file=process.stdin, flush=True)
        assert process.stdout.readline() == "asked\n"
        assert process.wait(60) == 3


def test_a_command_ends_when_its_client_is_gone() -> None:
    with watched("sleep 1000 & echo ready; wait") as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.stdin.close()
        assert process.wait(60) != 0
        assert process.stdout.read() == "", "all processes that held the output have ended, including the background child"


def test_a_command_that_does_not_lead_a_process_group_is_not_watched() -> None:
    words = ["/bin/sh", "-c", kubectl.WATCHED, "sh", "/bin/sh", "-c", "sleep 0.2; echo done"]
    # A signal to the group would also hit processes that do not belong to the command.
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@"; exit 5', "sh", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (5, "done\n")


def test_the_exit_status_of_the_command_is_read_from_the_servers_answer() -> None:
    failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "137"}]}}
    assert kubectl.exit_status({"status": "Success"}) == 0
    assert kubectl.exit_status(failed) == 137
    with pytest.raises(kubectl.ExecError, match="container is gone"):
        kubectl.exit_status({"status": "Failure", "message": "container is gone"})


def test_the_launcher_does_not_wait_for_itself(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("job-launcher slots=1\njob-worker-0 slots=2\n\njob-worker-1 slots=2\n")
    assert kubectl.hosts(str(hostfile)) == ["job-worker-0", "job-worker-1"]


@pytest.mark.parametrize(("least", "asked"), [(0, ["a", "b", "c", "b"]), (1, ["a"]), (2, ["a", "b", "c"])])
def test_the_launcher_waits_for_as_many_workers_as_are_needed(monkeypatch: pytest.MonkeyPatch, least: int, asked: list[str]) -> None:
    """Worker b is running only when the launcher checks it a second time."""
    seen: list[str] = []

    def is_running(_: object, name: str) -> bool:
        seen.append(name)
        return name != "b" or seen.count("b") > 1

    monkeypatch.setattr(kubectl, "is_running", is_running)
    monkeypatch.setattr(kubectl, "LOOK_EVERY_S", 0)
    kubectl.wait_for(kubectl.ApiServer.__new__(kubectl.ApiServer), ["a", "b", "c"], least)
    assert seen == asked


def test_the_installed_kubectl_runs_and_says_that_a_token_is_missing(tmp_path: Path) -> None:
    kubectl.install(str(tmp_path))
    kubectl.install(str(tmp_path))  # an init container may run twice
    program = tmp_path / "kubectl"
    assert os.access(program, os.X_OK)
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl"]
    outside = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    said = subprocess.run([program, "exec", "pod", "--", "true"], env=outside, capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert "no service account token" in said.stderr
