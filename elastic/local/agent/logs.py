"""Reads a container's log file as `kubectl logs` asks for it: from its end, bounded, and followed while the container runs."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 64 * 1024
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of a log that was asked for."""

    follow: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None


async def read(path: Path, wanted: Wanted, *, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yields what there is; following, it goes on until the container has ended and everything it wrote was read."""
    left = wanted.limit_bytes
    with path.open("rb") as file:
        if wanted.tail_lines is not None:
            file.seek(start_of_tail(file.fileno(), wanted.tail_lines))
        while left is None or left > 0:
            # Asked before reading: what is written after the end was seen would otherwise be lost.
            still = wanted.follow and running()
            chunk = file.read(CHUNK if left is None else min(CHUNK, left))
            if chunk:
                left = None if left is None else left - len(chunk)
                yield chunk
            elif still:
                await asyncio.sleep(POLL_S)
            else:
                return


def start_of_tail(descriptor: int, lines: int) -> int:
    """Where the last lines of a file begin; a last line without its newline counts as one."""
    end = os.fstat(descriptor).st_size
    if lines <= 0:
        return end
    position, found = end, 0
    while position > 0:
        begin = max(0, position - CHUNK)
        block = os.pread(descriptor, position - begin, begin)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if begin + at + 1 == end:
                continue
            found += 1
            if found == lines:
                return begin + at + 1
        position = begin
    return 0
