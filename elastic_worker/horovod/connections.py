"""The connections that Horovod's gloo has opened in this process: those that came while it was initialised.

After a failure gloo keeps them open, and a worker that still waits for this one would wait until gloo's timeout; shut down, they tell it at
once.
"""

import contextlib
import os
import socket
import typing

ESTABLISHED = 1
Connections = typing.Dict[int, int]
"""Descriptors, and the inode of each socket, by which a descriptor that was used again is known."""


def connected() -> Connections:
    """Return the TCP connections of this process to other processes."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            target = os.readlink("/proc/self/fd/" + name)
            if target.startswith("socket:[") and _is_connection(number):
                found[number] = int(target[len("socket:[") : -1])
        except OSError:  # closed meanwhile
            continue
    return found


def since(before: Connections) -> Connections:
    """Those that have come since then."""
    return {number: inode for number, inode in connected().items() if before.get(number) != inode}


def shut(connections: Connections) -> int:
    """End these in both directions, as far as they are the same still; how many there were.

    Horovod's own thread may close them, and open others, at the same time.
    """
    return sum(_is_shut(number, inode) for number, inode in connections.items())


def _is_shut(number: int, inode: int) -> bool:
    try:
        copy = os.dup(number)
    except OSError:  # closed meanwhile
        return False
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        return False
    with socket.socket(fileno=copy) as one, contextlib.suppress(OSError):  # the other side was quicker
        one.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _is_connection(number: int) -> bool:
    with socket.socket(fileno=os.dup(number)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED
