"""Breaks off a blocked gloo collective by shutting down the TCP connections of its group.

gloo has no abort: `ProcessGroup.abort` and `destroy_process_group` leave a blocked collective blocked until its timeout. If its
connections are shut down, as by the death of a peer, gloo raises within milliseconds. A listener is never shut down, because gloo's
listening thread would end the process with std::terminate. This module never imports torch.
"""

import contextlib
import os
import socket
import struct
import threading
import typing

FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Connections:
    """Connections of the present group. `begin` starts an epoch; a break names the epoch that it is meant for."""

    def __init__(self) -> None:
        self.epoch = 0
        self._lock = threading.Lock()
        self._foreign = set()  # type: typing.Set[str]
        self._addresses = b""
        self._own = []  # type: typing.List[socket.socket]

    def begin(self) -> None:
        """Start the epoch of the next group: no socket that is open now belongs to it."""
        with self._lock:
            self.epoch += 1
            self._foreign = set(_sockets().values())
            self._addresses = b""
            self._own = []

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

    def break_off(self, epoch: int) -> int:
        """Shut down the group of this epoch and return the number of its connections; do nothing if another epoch has begun."""
        with self._lock:
            if epoch != self.epoch:
                return 0
            for own in self._own:
                with contextlib.suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)
            found = ((descriptor, inode) for descriptor, inode in _sockets().items() if inode not in self._foreign)
            return sum(_shut(descriptor, inode, self._addresses) for descriptor, inode in found)


def _sockets() -> typing.Dict[int, str]:
    """Return the inodes of this process's sockets by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/self/fd/" + name)
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _shut(descriptor: int, inode: str, addresses: bytes) -> bool:
    """Shut down this socket if it is a connection of gloo's; return whether it was.

    gloo closes its sockets at any time, and another socket may get the number. A duplicate keeps the number from moving.
    """
    with contextlib.suppress(OSError):
        duplicate = os.dup(descriptor)
        with contextlib.closing(socket.socket(fileno=duplicate)) as connection:
            if os.readlink("/proc/self/fd/{}".format(duplicate)) != inode or not _is_connection(connection):
                return False
            ends = (connection.getpeername(), connection.getsockname())
            if any(_packed(connection, end) in addresses for end in ends):
                connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _is_connection(one: socket.socket) -> bool:
    is_tcp = one.family in FAMILIES and one.type == socket.SOCK_STREAM
    return is_tcp and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _packed(connection: socket.socket, address: typing.Tuple[typing.Any, ...]) -> bytes:
    """Return an address as the kernel's sockaddr has it, and so gloo's values."""
    family = connection.family
    between = struct.pack("!I", address[2]) if family == socket.AF_INET6 else b""
    host = socket.inet_pton(family, str(address[0]).partition("%")[0])
    return struct.pack("=H", family) + struct.pack("!H", address[1]) + between + host
