"""Prove that a worker shuts the connections that Horovod's gloo has opened, and no others."""

import socket
import struct

import pytest
from gloo_sockets import gloo_pair, pair, timed

from elastic_worker.horovod import connections


def test_only_the_connections_of_gloo_that_came_since_then_are_shut_and_the_other_side_sees_it() -> None:
    own, owns = gloo_pair()
    before = connections.connected()
    listening = socket.create_server(("127.0.0.1", 0))
    timed(listening)
    unix, other = socket.socketpair()
    timed(unix, other)
    web, site = pair()
    gloo, peer = gloo_pair()
    found = connections.since(before)
    assert set(found) == {gloo.fileno(), peer.fileno()}
    assert connections.shut({gloo.fileno(): found[gloo.fileno()]}) == 1
    assert peer.recv(1) == b""
    for near, far in ((own, owns), (web, site), (unix, other)):
        far.sendall(b"x")
        assert near.recv(1) == b"x"
    late = socket.create_connection(listening.getsockname())
    for one in (own, owns, listening, unix, other, web, site, gloo, peer, late):
        one.close()


def test_a_connection_with_a_timeout_in_one_direction_is_not_of_gloo() -> None:
    """Clients of databases set these, too, but hardly the same for both directions."""
    before = connections.connected()
    database, server = pair()
    database.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 30, 0))
    assert connections.since(before) == {}
    database.close()
    server.close()


def test_a_descriptor_that_was_used_again_is_left_alone() -> None:
    before = connections.connected()
    gloo, peer = gloo_pair()
    found = {gloo.fileno(): connections.since(before)[gloo.fileno()]}
    gloo.close()
    peer.close()
    again, other = gloo_pair()
    assert connections.shut(found) == 0
    other.sendall(b"x")
    assert again.recv(1) == b"x"
    again.close()
    other.close()


def test_one_that_horovods_own_thread_closes_at_this_moment_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce a crash: workers that had noticed a loss ended with EBADF, and took the other workers with them."""
    before = connections.connected()
    gloo, peer = gloo_pair()
    found = connections.since(before)
    gloo.close()
    monkeypatch.setattr(connections, "connected", lambda: found)
    assert connections.shut(found) == 1, "only the other one was there still"
    peer.close()
