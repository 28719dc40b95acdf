"""Find and shut the connections that Horovod's gloo has opened in this process.

After a failure gloo keeps its connections open. A peer that waits for this process would then wait until gloo's timeout. Shutting the
connections tells the peer at once, and ends a collective of this process that waits for a lost peer.
"""

import contextlib
import os
import socket
import struct
import typing

ESTABLISHED = 1
TIMEVAL = "ll"
Connections = typing.Dict[int, int]
"""Descriptors and the inode of each socket. The inode tells whether the process has reused a descriptor."""


def connected() -> Connections:
    """Return the connections of any gloo in this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            target = os.readlink("/proc/self/fd/" + name)
            if target.startswith("socket:[") and _is_of_gloo(number):
                found[number] = int(target[len("socket:[") : -1])
        except OSError:  # another thread has closed it meanwhile
            continue
    return found


def since(before: Connections) -> Connections:
    """Return the connections that were opened since `before`."""
    return {number: inode for number, inode in connected().items() if before.get(number) != inode}


def shut(connections: Connections) -> int:
    """Shut these connections in both directions and return how many were still open.

    Horovod's own thread may close them, and open others, at the same time.
    """
    return sum(_is_shut(number, inode) for number, inode in connections.items())


def _is_shut(number: int, inode: int) -> bool:
    try:
        copy = os.dup(number)
    except OSError:  # another thread has closed it meanwhile
        return False
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        return False
    with socket.socket(fileno=copy) as one, contextlib.suppress(OSError):  # the other side was quicker
        one.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _is_of_gloo(number: int) -> bool:
    """Tell whether this is an established TCP connection with the kernel's timeouts, which gloo sets and hardly any other library.

    A listening socket never is: gloo ends the process when one is shut.
    """
    with socket.socket(fileno=os.dup(number)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED:
            return False
        receive, send = (
            one.getsockopt(socket.SOL_SOCKET, name, struct.calcsize(TIMEVAL)) for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
        )
        return receive == send and any(struct.unpack(TIMEVAL, receive))
