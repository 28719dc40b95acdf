"""Read from the kernel how many bytes each TCP socket has carried.

/proc/PID/io counts the bytes of read and write. Most libraries use recv and send for sockets, which it does not count.
"""

import re
import socket
import struct
import typing

from elastic_worker.gloo_deadlock import procfs

SOCK_DIAG_BY_FAMILY, REQUEST, DUMP, DONE, ERROR = 20, 0x1, 0x300, 3, 2
NETLINK_SOCK_DIAG = 4
HEADER = struct.Struct("=IHHII")
QUESTION = struct.Struct("=BBBxI48x")
"""Family, protocol, the wanted attributes, the wanted states; then the ends of a socket, of which none is wanted."""
ATTRIBUTE = struct.Struct("=HH")
INODE_AT, ATTRIBUTES_AT = 68, 72
"""Places in an answer."""
INFO = 2
BYTES = struct.Struct("=QQ")
BYTES_AT = 120
"""Place of tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info, since Linux 4.1."""
LISTEN, TIME_WAIT = 10, 6
STATES = 0xFFF & ~(1 << LISTEN) & ~(1 << TIME_WAIT)
WITHIN_S = 2.0
MOST_BYTES = 4 << 20
LINK = re.compile(r"socket:\[(\d{1,10})\]\Z")

Carried = typing.Dict[int, int]
"""Bytes of each socket by its inode."""


def carried() -> Carried:
    """Return the bytes that each TCP socket of this network has carried in both directions; empty if the kernel does not say so."""
    found = {}  # type: Carried
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(WITHIN_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                question = QUESTION.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), STATES)
                kernel.send(HEADER.pack(HEADER.size + len(question), SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, 0, 0) + question)
                if not _read(kernel, found):
                    return {}
    except (OSError, struct.error):
        return {}
    return found


def of_process(pid: int, known: Carried) -> int:
    """Return the bytes that the sockets of a process have carried."""
    if not known:
        return 0
    try:
        matches = [LINK.match(target) for target in procfs.descriptors(pid).values()]
    except procfs.Unreadable:
        return 0
    return sum(known.get(int(match.group(1)), 0) for match in matches if match is not None)


def _read(kernel: socket.socket, found: Carried) -> bool:
    """Read the answer to one question; return whether it is complete."""
    total = 0
    while total < MOST_BYTES:
        data = kernel.recv(1 << 16)
        total += len(data)
        at = 0
        while at + HEADER.size <= len(data):
            length, kind = HEADER.unpack_from(data, at)[:2]
            if kind in (DONE, ERROR) or length < HEADER.size:
                return bool(kind == DONE)
            _note(data[at + HEADER.size : at + length], found)
            at += (length + 3) & ~3
    return False


def _note(answer: bytes, found: Carried) -> None:
    """Note the bytes of the socket that one answer describes."""
    at = ATTRIBUTES_AT
    while at + ATTRIBUTE.size <= len(answer):
        length, kind = ATTRIBUTE.unpack_from(answer, at)
        if length < ATTRIBUTE.size or at + length > len(answer):
            return
        if kind == INFO and length >= ATTRIBUTE.size + BYTES_AT + BYTES.size:
            inode = struct.unpack_from("=I", answer, INODE_AT)[0]
            found[inode] = sum(BYTES.unpack_from(answer, at + ATTRIBUTE.size + BYTES_AT))
        at += (length + 3) & ~3
