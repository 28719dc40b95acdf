"""How the launcher runs a command in a new host: through the API server in its own process, where its remote shell would do just that."""

import json
import socket
from pathlib import Path

import pytest

from elastic_worker.horovod import reach
from elastic_worker.mpi import kubectl

OURS = '#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\nexec /opt/kube/kubectl exec ${POD_NAME} --container mpi -- /bin/sh -c "$*"'


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a launcher's container: the remote shell, the client, and an account."""
    (tmp_path / "kubexec.sh").write_text(OURS)
    (tmp_path / "kubectl").write_text("#!/usr/bin/env python3\n" + Path(kubectl.__file__).read_text())
    (tmp_path / "account").mkdir()
    for name, text in (("token", "t"), ("namespace", "team"), ("ca.crt", "")):
        (tmp_path / "account" / name).write_text(text)
    return tmp_path


class Server:
    """Answers one exec with this status."""

    def __init__(self, status: object) -> None:
        ours, theirs = socket.socketpair()
        self.ours, self.asked = ours, ""
        text = b"\x03" + json.dumps(status).encode()
        theirs.sendall(bytes([0x82, len(text)]) + text)
        self.theirs = theirs


def by_exec(pod: Path, environ: dict[str, str]) -> reach.Reach | None:
    return reach.by_exec(environ, str(pod / "kubexec.sh"), str(pod / "kubectl"))


@pytest.fixture
def account(pod: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = kubectl.ApiServer
    monkeypatch.setattr(reach.kubectl, "ApiServer", lambda environ: given(environ, str(pod / "account")))
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}


@pytest.mark.parametrize(
    ("status", "is_proven"),
    [
        ({"status": "Success"}, True),
        ({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "1"}]}}, False),
        ({"status": "Failure", "message": "no such container"}, False),
    ],
)
def test_the_commands_status_proves_a_host(
    pod: Path, account: dict[str, str], monkeypatch: pytest.MonkeyPatch, status: object, is_proven: bool
) -> None:
    asked: list[tuple[str, list[tuple[str, str]]]] = []
    server = Server(status)

    def opened(api: object, name: str, query: list[tuple[str, str]]) -> kubectl.WebSocket:
        asked.append((name, query))
        return kubectl.WebSocket(server.ours)

    monkeypatch.setattr(reach.kubectl, "open_exec", opened)
    found = by_exec(pod, account)
    assert found is not None
    assert found("train-worker-1") is is_proven
    assert asked[0][0] == "train-worker-1"
    assert ("container", "mpi") in asked[0][1]
    assert server.ours.fileno() == -1, "the connection is closed"
    server.theirs.close()


def test_a_host_that_cannot_be_reached_is_not_proven(pod: Path, account: dict[str, str]) -> None:
    found = by_exec(pod, account)
    assert found is not None
    assert not found("train-worker-1"), "nothing listens there"


@pytest.mark.parametrize("change", ["shell", "client", "account"])
def test_if_horovodrun_would_go_another_way_the_command_is_run(pod: Path, account: dict[str, str], change: str) -> None:
    match change:
        case "shell":
            (pod / "kubexec.sh").write_text("#!/bin/sh\nssh $1\n")
        case "client":
            (pod / "kubectl").write_text("#!/bin/sh\n")
        case _:
            account.clear()
    assert by_exec(pod, account) is None


def test_a_host_that_the_direct_way_does_not_reach_is_tried_by_the_command() -> None:
    assert reach.either(lambda host: False, lambda host: host == "w0")("w0")
    assert not reach.either(lambda host: False, lambda host: False)("w0")
    assert reach.either(None, lambda host: True)("w0")


def test_a_silent_host_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    link = kubectl.WebSocket(ours)
    assert reach._status(link, until=0.0) is None
    link.close()
    theirs.close()
