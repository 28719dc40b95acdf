"""Wait for pipes, terminals and sockets in an event loop. This module owns no descriptor and closes none."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Callable
from typing import Any


async def readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_reader, loop.remove_reader)


async def writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_writer, loop.remove_writer)


async def _ready(descriptor: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], Any]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, settle)
    try:
        await ready
    finally:
        remove(descriptor)


async def write(target: int, data: bytes) -> None:
    """Write data without blocking the loop. If the program does not read, only its client waits; if it has gone, nobody does."""
    os.set_blocking(target, False)
    # A terminal whose last user has gone returns EIO.
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                await writable(target)


def resize(terminal: int, *, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
