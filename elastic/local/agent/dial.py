"""Connect to a port of a pod in the pod's own network, from a process outside of it."""

from __future__ import annotations

import os
import socket

from elastic.local.descriptors import writable
from elastic.local.sandbox.channel import Channel


async def dial(channel: Channel, pod: str, *, ip: str, port: int, inside: bool) -> socket.socket:
    """Connect to a port. Raise OSError with the address in its text if nothing listens there.

    With `inside`, connect to the pod's loopback, as a kubelet does to forward ports.
    """
    connection = await channel.dial(pod, port=port, inside=inside)
    try:
        connection.setblocking(False)
        await writable(connection.fileno())
        problem = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, f"dial tcp {'127.0.0.1' if inside else ip}:{port}: {os.strerror(problem)}")
    except BaseException:
        connection.close()
        raise
    return connection
