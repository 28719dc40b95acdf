"""Pipes, terminals and sockets of the operating system as an event loop waits for them. It owns none of them and closes none."""

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
    """A program that does not read its input holds up nothing but its client; one that will never read it, not even that."""
    os.set_blocking(target, False)
    # A terminal whose last user has gone says EIO.
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                await writable(target)


def resize(terminal: int, *, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
