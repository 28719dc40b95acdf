"""A break reaches the sockets of the present group, and no other."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from elastic_worker.training.connections import Connections

HOSTS = ("127.0.0.1", "::1")
SO_MAX_PACING_RATE = 47


def rank(listener: socket.socket) -> bytes:
    """Return a value as gloo exchanges it: somewhere in it is the sockaddr of the sender's listener."""
    host, port = listener.getsockname()[:2]
    between = bytes(4) if listener.family == socket.AF_INET6 else b""
    return (
        b"name\0"
        + struct.pack("=H", listener.family)
        + struct.pack("!H", port)
        + between
        + socket.inet_pton(listener.family, host)
        + bytes(8)
    )


class Group:
    """Our end of a group: a listener, a connection that a peer has opened, and one that we have opened to a peer's listener."""

    def __init__(self, opened: ExitStack, connections: Connections, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener, peer = (opened.enter_context(socket.create_server((host, 0), family=family)) for _ in range(2))
        self.theirs_in = opened.enter_context(socket.create_connection(self.listener.getsockname()[:2]))
        self.accepted = opened.enter_context(closing(self.listener.accept()[0]))
        self.connected = opened.enter_context(socket.create_connection(peer.getsockname()[:2]))
        self.theirs_out = opened.enter_context(closing(peer.accept()[0]))
        for one in (self.listener, peer):
            connections.learn(rank(one))
        self.ends = [self.accepted, self.connected]


def is_broken(one: socket.socket) -> bool:
    """Return whether a read ends at once, as gloo's read does."""
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("host", HOSTS)
def test_a_break_ends_the_reads_of_the_group_and_leaves_its_listener(opened: ExitStack, host: str) -> None:
    connections = Connections()
    connections.begin(2)
    connections.formed()
    group = Group(opened, connections, host)
    assert not any(map(is_broken, group.ends))
    # All four ends are in this process, and each has the address of a listener of the group.
    assert connections.break_off(connections.epoch) == 4
    assert all(map(is_broken, group.ends))
    opened.enter_context(socket.create_connection(group.listener.getsockname()[:2]))
    opened.enter_context(closing(group.listener.accept()[0]))


def test_a_connection_that_a_thread_of_the_program_opens_meanwhile_is_spared(opened: ExitStack) -> None:
    connections = Connections()
    connections.begin(2)
    connections.formed()
    group = Group(opened, connections)
    server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    own = opened.enter_context(socket.create_connection(server.getsockname()))
    accepted = opened.enter_context(closing(server.accept()[0]))
    unix = socket.socketpair()
    datagrams = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for one in unix:
        opened.enter_context(one)
    datagrams.connect(group.listener.getsockname())
    assert connections.break_off(connections.epoch) == 4
    assert not any(map(is_broken, (own, accepted, *unix)))


def test_the_end_of_a_group_closes_its_connections_and_no_others(opened: ExitStack) -> None:
    """Gloo needed 7 ms for each connection that was still open: 57 ms of each planned change of eight ranks."""
    connections = Connections()
    earlier = Group(opened, connections)
    connections.begin(2)
    group = Group(opened, connections)
    connections.end()
    assert all(map(is_broken, [*group.ends, group.theirs_in, group.theirs_out]))
    assert not any(map(is_broken, earlier.ends))
    opened.enter_context(socket.create_connection(group.listener.getsockname()[:2]))


def test_it_is_known_for_how_long_each_connection_of_the_group_was_sending(opened: ExitStack) -> None:
    connections = Connections()
    Group(opened, connections)
    connections.begin(2)
    group = Group(opened, connections)
    before = connections.sending_s()
    assert before.keys() == {inode(one) for one in (*group.ends, group.theirs_in, group.theirs_out)}
    group.connected.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 1_000_000)
    group.connected.setblocking(False)
    group.theirs_out.setblocking(False)
    until = time.monotonic() + 20
    while connections.sending_s()[inode(group.connected)] < 0.2:
        with suppress(BlockingIOError):
            group.connected.send(bytes(200_000))
        with suppress(BlockingIOError):
            group.theirs_out.recv(200_000)  # time in which the peer reads nothing does not count
        assert time.monotonic() < until
        time.sleep(0.01)
    assert connections.sending_s()[inode(group.accepted)] == before[inode(group.accepted)]
    assert connections.sending_s().keys() == before.keys()


def inode(one: socket.socket) -> str:
    return os.readlink(f"/proc/self/fd/{one.fileno()}")


def test_a_break_of_an_earlier_epoch_does_nothing(opened: ExitStack) -> None:
    connections = Connections()
    connections.begin(2)
    late = connections.epoch
    connections.begin(2)
    group = Group(opened, connections)
    assert connections.break_off(late) == 0
    assert not any(map(is_broken, group.ends))


def test_a_break_starts_that_of_another_transport_once_and_counts_it_while_it_lasts() -> None:
    connections = Connections()
    started, is_breaking = [], True

    def start() -> Callable[[], bool]:
        started.append(connections.epoch)
        return lambda: is_breaking

    connections.begin(2)
    connections.also_break(start)
    epoch = connections.epoch
    assert [connections.break_off(epoch) for _ in range(2)] == [1, 1]
    is_breaking = False
    assert connections.break_off(epoch) == 0
    connections.also_break(start)
    connections.begin(2)
    assert connections.break_off(epoch) == connections.break_off(connections.epoch) == 0
    assert started == [epoch]


def test_a_socket_that_was_open_before_the_epoch_is_foreign_even_at_an_address_of_the_group(opened: ExitStack) -> None:
    connections = Connections()
    server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    own = opened.enter_context(socket.create_connection(server.getsockname()))
    connections.begin(2)
    connections.formed()
    connections.learn(rank(server))
    assert connections.break_off(connections.epoch) == 0
    assert not is_broken(own)


def test_a_transfer_of_ours_is_broken_off_with_the_group(opened: ExitStack) -> None:
    connections = Connections()
    connections.begin(2)
    ours, peer = socket.socketpair()
    dropped, other = socket.socketpair()
    for one in (ours, peer, dropped, other):
        opened.enter_context(one)
    connections.add(ours)
    connections.add(dropped)
    connections.drop(dropped)
    connections.break_off(connections.epoch)
    assert is_broken(ours)
    assert not is_broken(dropped)


def test_while_a_group_forms_a_break_names_every_pair_to_its_own_listener(opened: ExitStack) -> None:
    """Gloo waits on no socket for a peer that has died: it would wait 15 s."""
    connections = Connections()
    connections.begin(3)
    listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    connections.learn(rank(listener))
    connections.break_off(connections.epoch)
    listener.settimeout(20)
    named = []
    for _ in range(3):
        with closing(listener.accept()[0]) as one:
            named.append(struct.unpack("=q", one.recv(8)))
    assert named == [(0,), (1,), (2,)]
    connections.formed()
    connections.break_off(connections.epoch)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_connection_is_broken_once_nothing_moves_on_it(opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo would wait for ever for an operation that is half received when its connection ends."""
    connections = Connections()
    connections.begin(2)
    connections.formed()
    group = Group(opened, connections)
    left = [b"a", b"b", b"c"]

    def sleep(_: float) -> None:
        if left:
            group.theirs_in.sendall(left.pop())

    monkeypatch.setattr("elastic_worker.training.connections.time.sleep", sleep)
    connections.break_off(connections.epoch)
    assert left == []
    assert group.accepted.recv(9) == b"cba"
    assert is_broken(group.accepted)


def test_a_connect_to_a_host_that_is_gone_is_broken_off(opened: ExitStack) -> None:
    """The listener's queue is full, so a connect to it waits as that to a host without power."""
    connections = Connections()
    connections.begin(2)
    full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    other = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    connecting = []
    for server in (full, full, full, other, other, other):
        one = opened.enter_context(socket.socket())
        one.setblocking(False)
        one.connect_ex(server.getsockname())
        connecting.append(one)
    connections.learn(rank(full)[:-8])
    connections.formed()
    connections.break_off(connections.epoch)
    states = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)[0] for one in (connecting[2], connecting[5])]
    assert states == [7, 2], "closed, and still connecting"
