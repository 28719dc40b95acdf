"""Read the flags that processes of the control plane share, and find mistakes in them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping

from elastic.api.kinds import KINDS

HIGHEST_PORT = 65535


def chosen_kinds(text: str) -> tuple[str, ...]:
    """Return the names between the commas, each once."""
    return tuple(dict.fromkeys(kind.strip() for kind in text.split(",") if kind.strip()))


def identity() -> str:
    """Return the name of this process for the API server and for Leases."""
    return f"{socket.gethostname()}_{os.getpid()}"


def kind_mistakes(kinds: Iterable[str], *, of: str = "control plane") -> Iterator[str]:
    kinds = tuple(kinds)
    if not kinds:
        yield f"--enable-kinds names no kind; choose from {', '.join(KINDS)}"
    for kind in kinds:
        if kind not in KINDS:
            yield f"--enable-kinds: {kind!r} is not a kind of this {of}; choose from {', '.join(KINDS)}"


def port_mistakes(ports: Mapping[str, int]) -> Iterator[str]:
    """Yield the mistakes in ports by flag; 0 means no port."""
    for flag, port in ports.items():
        if not 0 <= port <= HIGHEST_PORT:
            yield f"{flag} is {port} but must be from 1 to {HIGHEST_PORT}, or 0 for none"
