"""Breaks off a blocked gloo collective by shutting down the TCP connections of its group.

gloo has no abort: `ProcessGroup.abort` and `destroy_process_group` leave a blocked collective blocked until its timeout. If its
connections end, as by the death of a peer, gloo raises within milliseconds. A listener is never shut down, because gloo's listening
thread would end the process with std::terminate. This module never imports torch.

gloo tells an operation of an error only if the operation waits for its peer. An operation that has begun to send or receive is forgotten
(`Pair::signalException` looks at neither `tx_` nor `rx_`). So a connection is shut down once nothing moves on it, and for reading only: a
write to it would fail, and the operation would be forgotten.
"""

import contextlib
import os
import socket
import struct
import threading
import time
import typing

FAMILIES = (socket.AF_INET, socket.AF_INET6)
TCP_INFO_SIZE, MOVED = 192, slice(120, 136)
"""Place of the bytes that the peer has acknowledged and of those that it has sent, in the kernel's struct tcp_info."""
BUSY = 168
"""Place of the microseconds in which something was on its way to the peer, and of those of them in which the peer read nothing."""
STILL_S = 0.005
"""Seconds without a byte until a connection counts as still."""
LONGEST_MOVING_S = 0.1
POKE_S = 0.2
SYN_SENT = 2
"""State in the kernel's struct tcp_info of a socket that connects."""


class Connections:
    """Connections of the present group. `begin` starts an epoch; a break names the epoch that it is meant for."""

    def __init__(self) -> None:
        self.epoch = 0
        self._lock = threading.Lock()
        self._foreign = set()  # type: typing.Set[str]
        self._addresses = b""
        self._own = []  # type: typing.List[socket.socket]
        self._size = 0
        """Number of gloo's pairs while a group forms; 0 afterwards."""
        self._break_also = None  # type: typing.Optional[typing.Callable[[], typing.Callable[[], bool]]]
        self._is_breaking = lambda: False  # type: typing.Callable[[], bool]

    def begin(self, size: int) -> None:
        """Start the epoch of the next group: no socket that is open now belongs to it."""
        with self._lock:
            self.epoch += 1
            self._size = size
            self._foreign = set(_sockets().values())
            self._addresses = b""
            self._own = []
            self._break_also, self._is_breaking = None, lambda: False

    def also_break(self, start: "typing.Callable[[], typing.Callable[[], bool]]") -> None:
        """Call `start` at the first break of this epoch. It returns a function that says whether the break is still going on."""
        with self._lock:
            self._break_also = start

    def learn(self, value: bytes) -> None:
        """Note what a member of the group sent to the others. gloo's values hold the address of its listener."""
        with self._lock:
            if value not in self._addresses:
                self._addresses += value

    def add(self, own: socket.socket) -> None:
        """Break off this connection of ours together with the group's."""
        with self._lock:
            self._own.append(own)

    def drop(self, own: socket.socket) -> None:
        """Forget a connection that `add` was told of."""
        with self._lock:
            self._own = [other for other in self._own if other is not own]

    def formed(self) -> None:
        """Note that gloo has connected all its pairs."""
        with self._lock:
            self._size = 0

    def sending_s(self) -> typing.Dict[str, float]:
        """Return for how many seconds each connection of the group has been sending, by inode, except while its peer read nothing."""
        found = {}
        with self._lock:
            for one in _group(self._foreign, self._addresses):
                with contextlib.closing(one), contextlib.suppress(OSError, struct.error):
                    if not _is_listener(one):
                        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
                        busy, unread = struct.unpack_from("=QQ", info, BUSY)
                        found[os.readlink("/proc/self/fd/{}".format(one.fileno()))] = max(0, busy - unread) / 1e6
        return found

    def end(self) -> None:
        """Close the connections of the group, because no member uses it any more.

        gloo waits for its loop, up to 10 ms, for each connection that is open when the group is destroyed.
        """
        with self._lock:
            for one in _group(self._foreign, self._addresses):
                with contextlib.closing(one), contextlib.suppress(OSError):
                    if not _is_listener(one):
                        one.shutdown(socket.SHUT_RDWR)

    def break_off(self, epoch: int) -> int:
        """Break off the group of this epoch; do nothing if another epoch has begun. Return how many parts of the group are still there."""
        until = time.monotonic() + LONGEST_MOVING_S
        before = None  # type: typing.Optional[typing.List[bytes]]
        while True:
            with self._lock:
                if epoch != self.epoch:
                    return 0
                if self._break_also is not None:
                    self._is_breaking, self._break_also = self._break_also(), None
                with contextlib.ExitStack() as opened:
                    connections = [opened.enter_context(contextlib.closing(one)) for one in _group(self._foreign, self._addresses)]
                    counters = [_counters(one) for one in connections if not _is_listener(one)]
                    if counters == before or not counters or time.monotonic() > until:
                        self._shut(connections)
                        return len(counters) + self._is_breaking()
            before = counters
            time.sleep(STILL_S)

    def _shut(self, connections: "typing.List[socket.socket]") -> None:
        for own in self._own:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
        for one in connections:
            with contextlib.suppress(OSError):
                if not _is_listener(one):
                    one.shutdown(socket.SHUT_RD)
                elif self._size:
                    _poke(one, self._size)


def _group(foreign: "typing.Set[str]", addresses: bytes) -> "typing.Iterator[socket.socket]":
    """Yield duplicates of gloo's sockets: its listener, and the connections with listeners of the group.

    gloo closes its sockets at any time, and another socket may get the number. A duplicate keeps the number from moving.
    """
    for descriptor, inode in _sockets().items():
        if inode in foreign:
            continue
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(descriptor))
            try:
                if os.readlink("/proc/self/fd/{}".format(one.fileno())) == inode and _is_of_group(one, addresses):
                    yield one
                    continue
            except BaseException:
                one.close()
                raise
            one.close()


def _is_of_group(one: socket.socket, addresses: bytes) -> bool:
    if one.family not in FAMILIES or one.type != socket.SOCK_STREAM:
        return False
    if _state(one) == SYN_SENT:  # it has no peer yet for getpeername, and the connect to a host that is gone lasts two minutes
        return _connecting_to(one) in addresses
    return _packed(one, one.getsockname()) in addresses or (not _is_listener(one) and _packed(one, one.getpeername()) in addresses)


def _state(one: socket.socket) -> int:
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)[0]


def _connecting_to(one: socket.socket) -> bytes:
    """Return the address of the peer to which this socket connects, as `_packed` does; a byte that no address has if it is unknown."""
    inode = os.readlink("/proc/self/fd/{}".format(one.fileno()))[len("socket:[") : -1]
    with contextlib.suppress(OSError), open("/proc/self/net/tcp6" if one.family == socket.AF_INET6 else "/proc/self/net/tcp") as file:
        for fields in (line.split() for line in file):
            if len(fields) > 9 and fields[9] == inode:
                words, port = fields[2].split(":")
                raw = bytes.fromhex(words)
                host = b"".join(raw[begin : begin + 4][::-1] for begin in range(0, len(raw), 4))
                between = bytes(4) if one.family == socket.AF_INET6 else b""
                return struct.pack("=H", one.family) + bytes.fromhex(port) + between + host
    return b"\0 unknown"


def _is_listener(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _counters(one: socket.socket) -> bytes:
    """Return two counters that change if something moves on this connection."""
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)[MOVED]


def _poke(listener: socket.socket, size: int) -> None:
    """End gloo's passive waits while a group forms: gloo waits, on no socket at all, for peers to connect and to name the number of a pair.

    We name each number in place of a peer that has died, and close the connection: the wait ends, and the pair is broken. gloo keeps a
    number that nobody waits for yet.
    """
    for number in range(size):
        with socket.create_connection(listener.getsockname()[:2], POKE_S) as connection:
            connection.sendall(struct.pack("=q", number))


def _sockets() -> typing.Dict[int, str]:
    """Return the inodes of this process's sockets by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/self/fd/" + name)
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _packed(connection: socket.socket, address: typing.Tuple[typing.Any, ...]) -> bytes:
    """Return an address as the kernel's sockaddr has it, and so gloo's values."""
    family = connection.family
    between = struct.pack("!I", address[2]) if family == socket.AF_INET6 else b""
    host = socket.inet_pton(family, str(address[0]).partition("%")[0])
    return struct.pack("=H", family) + struct.pack("!H", address[1]) + between + host
