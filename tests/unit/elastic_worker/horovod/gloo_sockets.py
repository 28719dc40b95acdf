"""Pairs of TCP connections, as any program opens them and as gloo does."""

import socket
import struct


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


def timed(*sockets: socket.socket, timeout_s: int = 60) -> None:
    """Set the kernel's timeouts, as gloo does for each of its connections and hardly any other library does."""
    for one in sockets:
        for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            one.setsockopt(socket.SOL_SOCKET, name, struct.pack("ll", timeout_s, 0))


def gloo_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection of gloo's."""
    ours, theirs = pair()
    timed(ours, theirs)
    return ours, theirs
