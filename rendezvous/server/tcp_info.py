"""Ask the kernel when the other side of a connection last answered. Its kernel acknowledges what we send, even if its process hangs."""

import math
import socket
import struct

_TCP_INFO = getattr(socket, "TCP_INFO", None)
_LAST_ACK_RECEIVED = 8 + 12 * 4
"""Place of tcpi_last_ack_recv, in milliseconds, in struct tcp_info."""


def answered_at(connection: socket.socket | None, *, now: float) -> float:
    """Return when the peer last answered, on the clock of `now`. Infinite if nobody knows: no TCP_INFO, or a transport without a socket."""
    if connection is None or _TCP_INFO is None:
        return math.inf
    if connection.fileno() < 0:
        return -math.inf  # closed
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 104)
    except OSError:
        return math.inf
    if len(info) < _LAST_ACK_RECEIVED + 4:
        return math.inf
    (ago_ms,) = struct.unpack_from("=I", info, _LAST_ACK_RECEIVED)
    return now - float(ago_ms) / 1000
