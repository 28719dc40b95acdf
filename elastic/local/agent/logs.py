"""Read a container's log file as `kubectl logs` asks for it: from its end, bounded, and followed while the container runs."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from elastic.local.agent.logtimes import Times

CHUNK = 64 * 1024
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested part of a log."""

    follow: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: float | None = None
    timestamps: bool = False


async def read(path: Path, wanted: Wanted, *, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the log. If it is followed, continue until the container has ended and all its output was read."""
    left = wanted.limit_bytes
    async for chunk in _stamped(path, wanted, running) if wanted.timestamps else _plain(path, wanted, running):
        yield chunk if left is None else chunk[:left]
        left = None if left is None else left - len(chunk)
        if left is not None and left <= 0:
            return


async def _plain(path: Path, wanted: Wanted, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    async for _, chunk in _pieces(path, wanted, running):
        yield chunk


async def _stamped(path: Path, wanted: Wanted, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield each line with the time at which its end was written. Hold an incomplete line back, unless it is very long."""
    times, rest = Times(path), b""
    async for offset, chunk in _pieces(path, wanted, running):
        times.update()
        begin, text = offset - len(rest), rest + chunk
        whole = len(text) if len(text) > CHUNK else text.rfind(b"\n") + 1
        if whole:
            yield _with_times(text[:whole], begin, times)
        rest = text[whole:]
        end = begin + len(text)
    if rest:
        yield _with_times(rest, end - len(rest), times)


def _with_times(text: bytes, begin: int, times: Times) -> bytes:
    out, now = [], time.time()
    for line in _lines(text):
        begin += len(line)
        out.append(shown(times.of(begin - 1, now=now)) + line)
    return b"".join(out)


def _lines(text: bytes) -> list[bytes]:
    """Split text into lines. Only a newline ends a line of a log; a carriage return is a part of the line."""
    *whole, rest = text.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def shown(at: float) -> bytes:
    """Return a time as logs show it: UTC with nanoseconds."""
    whole, part = divmod(int(at * 1_000_000), 1_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:06d}000Z ".encode()


async def _pieces(path: Path, wanted: Wanted, running: Callable[[], bool]) -> AsyncIterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        if wanted.tail_lines is not None:
            file.seek(start_of_tail(file.fileno(), wanted.tail_lines))
        if wanted.since is not None:
            file.seek(max(file.tell(), start_of_line(file.fileno(), Times(path).first_since(wanted.since))))
        while True:
            # Ask before reading, because output written between the read and the end would otherwise be lost.
            still = wanted.follow and running()
            offset, chunk = file.tell(), file.read(CHUNK)
            if chunk:
                yield offset, chunk
            elif still:
                await asyncio.sleep(POLL_S)
            else:
                return


def start_of_line(descriptor: int, offset: int) -> int:
    """Return the beginning of the line that contains the byte at this offset."""
    while offset > 0:
        begin = max(0, offset - CHUNK)
        found = os.pread(descriptor, offset - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        offset = begin
    return 0


def start_of_tail(descriptor: int, lines: int) -> int:
    """Return the beginning of the last lines of a file. A last line without a newline counts as a line."""
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
