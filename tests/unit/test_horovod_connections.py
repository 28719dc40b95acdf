"""After a failure a worker ends the connections that Horovod has opened, and no others."""

import socket

import pytest

from elastic_worker.horovod import connections


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


def test_only_what_came_since_then_is_ended_and_the_other_side_sees_it() -> None:
    own, owns = pair()
    listening = socket.create_server(("127.0.0.1", 0))
    unix, other = socket.socketpair()
    before = connections.connected()
    gloo, peer = pair()
    found = connections.since(before)
    assert set(found) == {gloo.fileno(), peer.fileno()}
    assert connections.shut({gloo.fileno(): found[gloo.fileno()]}) == 1
    assert peer.recv(1) == b""
    owns.sendall(b"x")
    assert own.recv(1) == b"x"
    for one in (own, owns, listening, unix, other, gloo, peer):
        one.close()


def test_a_descriptor_that_was_used_again_is_left_alone() -> None:
    before = connections.connected()
    gloo, peer = pair()
    found = {gloo.fileno(): connections.since(before)[gloo.fileno()]}
    gloo.close()
    peer.close()
    again, other = pair()
    assert connections.shut(found) == 0
    other.sendall(b"x")
    assert again.recv(1) == b"x"
    again.close()
    other.close()


def test_one_that_horovods_own_thread_closes_at_this_moment_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that had noticed a loss ended with EBADF, and took those with them that had not."""
    before = connections.connected()
    gloo, peer = pair()
    found = connections.since(before)
    gloo.close()
    monkeypatch.setattr(connections, "connected", lambda: found)
    assert connections.shut(found) == 1, "only the other one was there still"
    peer.close()
