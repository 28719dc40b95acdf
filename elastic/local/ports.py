"""Find ports for servers that open their sockets themselves, or that are started again."""

import contextlib
import random
import socket
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 15_000
TRIES = 200


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that the kernel gives to no outgoing connection.

    From its own range one may be taken before the server opens it, or while the server is down: a client that tries again and again is at
    last connected to itself.
    """
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(_held()) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in held]


def free_port() -> int:
    return free_ports(1)[0]


def _held() -> socket.socket:
    candidates = range(LOWEST, _first_ephemeral())
    for port in random.SystemRandom().sample(candidates, min(len(candidates), TRIES)):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    return socket.create_server(("127.0.0.1", 0))


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
