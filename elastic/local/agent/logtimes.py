"""Find out when the lines of a log file were written.

Containers write their logs themselves, without times. The kernel reports that a file grew, and the file `N.times` next to each log `N.log`
holds its length at each time. This module does not know what the times are for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

IN_MODIFY = 0x02
ENTRY = struct.Struct("<Qd")
EVENT = struct.Struct("iIII")
REST_S = 0.02
"""Seconds for which further growth goes unnoticed: a container that writes all the time causes fifty entries a second."""
MOST_ENTRIES = 500_000
"""Largest number of entries for a log. All later output counts as written at the same time."""


def beside(path: Path) -> Path:
    return path.with_suffix(".times")


class Times:
    """The known lengths of a log and their times, both growing."""

    def __init__(self, path: Path) -> None:
        self._path = beside(path)
        self._seen = 0
        self.ends: list[int] = []
        self.at: list[float] = []
        self.update()

    def update(self) -> None:
        """Read the entries that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._seen)
                data = file.read()
        except OSError:
            return
        whole = data[: len(data) // ENTRY.size * ENTRY.size]
        self._seen += len(whole)
        for end, at in ENTRY.iter_unpack(whole):
            self.ends.append(end)
            self.at.append(at)

    def of(self, offset: int, *, now: float) -> float:
        """Return the time at which the byte at an offset was written. Output without an entry was written now."""
        place = bisect_right(self.ends, offset)
        return self.at[place] if place < len(self.at) else now

    def first_since(self, since: float) -> int:
        """Return the offset from which everything was written at that time or later."""
        place = bisect_left(self.at, since)
        return self.ends[place - 1] if place else 0


class LogClock:
    """Notes the growth of the logs that it watches, until they are gone. Each process has one clock."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._paths: dict[int, Path] = {}
        self._noted: dict[Path, tuple[int, int]] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._resting = False
        if self._queue < 0:
            log.warning("log lines have no times, because the kernel gives no more inotify queues: %s", os.strerror(ctypes.get_errno()))
            return
        asyncio.get_running_loop().add_reader(self._queue, self._grown)

    def close(self) -> None:
        if self._queue >= 0:
            asyncio.get_running_loop().remove_reader(self._queue)
            os.close(self._queue)
            self._queue = -1

    def follow(self, path: Path) -> None:
        """Follow a log from now on. If an earlier process followed it, continue after the last entry."""
        if path in self._noted or self._queue < 0:
            return
        path.touch(mode=0o600)
        watch = self._libc.inotify_add_watch(self._queue, os.fsencode(path), IN_MODIFY)
        if watch < 0:
            log.warning("the lines of %s have no times: %s", path, os.strerror(ctypes.get_errno()))
            return
        known = Times(path)
        with contextlib.suppress(OSError):
            # A process that was killed while it wrote an entry leaves an incomplete one.
            os.truncate(beside(path), len(known.ends) * ENTRY.size)
        self._paths[watch] = path
        self._noted[path] = (known.ends[-1] if known.ends else 0, len(known.ends))
        self.note(path)

    def forget(self, path: Path) -> None:
        """Stop to follow a log, because its container has ended."""
        watch = next((number for number, known in self._paths.items() if known == path), None)
        if watch is not None:
            self.note(path)
            self._libc.inotify_rm_watch(self._queue, watch)
            del self._paths[watch], self._noted[path]

    def forget_below(self, folder: Path) -> None:
        for path in [path for path in self._noted if path.is_relative_to(folder)]:
            self.forget(path)

    def note(self, path: Path) -> None:
        """Write the log's present length, if it has grown."""
        length, entries = self._noted.get(path, (0, MOST_ENTRIES))
        try:
            size = path.stat().st_size
            if size <= length or entries >= MOST_ENTRIES:
                return
            with beside(path).open("ab") as file:
                file.write(ENTRY.pack(size, self._clock()))
        except OSError:
            return  # the pod has just been removed
        self._noted[path] = (size, entries + 1)

    def _grown(self) -> None:
        asyncio.get_running_loop().remove_reader(self._queue)
        asyncio.get_running_loop().call_later(REST_S, self._listen)
        try:
            data = os.read(self._queue, 1 << 16)
        except BlockingIOError:
            return
        at = 0
        grown: set[Path] = set()
        while at < len(data):
            watch, _, _, length = EVENT.unpack_from(data, at)
            at += EVENT.size + length
            if watch in self._paths:
                grown.add(self._paths[watch])
        for path in grown:
            self.note(path)

    def _listen(self) -> None:
        if self._queue >= 0:
            asyncio.get_running_loop().add_reader(self._queue, self._grown)
