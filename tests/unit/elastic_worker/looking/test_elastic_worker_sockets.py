"""The bytes of TCP connections are read from the kernel."""

from __future__ import annotations

import os
import socket

import pytest

from elastic_worker.looking import sockets


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_bytes_that_a_connection_receives_are_counted(family: socket.AddressFamily, host: str) -> None:
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"there is no {host} here")
    with server, socket.create_connection(server.getsockname()[:2]) as near:
        far, _ = server.accept()
        with far:
            inode = os.fstat(near.fileno()).st_ino
            before = sockets.carried()[inode]
            far.sendall(b"x" * 5000)
            assert len(near.recv(5000, socket.MSG_WAITALL)) == 5000
            after = sockets.carried()
            assert after[inode] - before == 5000
            assert sockets.of_process(os.getpid(), after) >= 5000


def test_without_answers_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)
    assert sockets.carried() == {}
    assert sockets.of_process(os.getpid(), {}) == 0


def test_answers_of_odd_forms_are_passed_over() -> None:
    found: sockets.Carried = {}
    for answer in (b"", b"x" * 71, b"\0" * 80, b"\0" * 72 + b"\xff\xff\x02\0", b"\0" * 72 + b"\x08\0\x02\0" + b"\0" * 4):
        sockets._note(answer, found)
    assert found == {}
