"""Where a container's input comes from: nowhere, a pipe, or a terminal, which takes its output too.

One end is the container's, the other the holder's, who lends it out and keeps it for as long as the container runs, so that clients come
and go. Unread input lies in the kernel, which takes no more than a pipe holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import termios
from collections.abc import Callable
from dataclasses import dataclass

from elastic.local.sandbox import Input

CHUNK = 1 << 16
DRAIN_MS = 2000
"""How long the end of what a terminal showed is waited for; its last user has gone, unless another process opened it by its name."""


@dataclass(frozen=True, slots=True)
class Console:
    """What the container's main process has as its streams: an input, an output, and the far end of both where they are a terminal."""

    input: int
    output: int
    terminal: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.input, self.output) if self.terminal is None else (self.input, self.output, self.terminal)

    @property
    def is_terminal(self) -> bool:
        return self.terminal is not None

    def take(self) -> tuple[int, int, int]:
        """Makes it that of this session, and returns the program's streams."""
        if self.terminal is None:
            return self.input, self.output, self.output
        fcntl.ioctl(self.input, termios.TIOCSCTTY, 0)
        return self.input, self.input, self.input

    def leave(self) -> None:
        """For a process between the holder and the program, which must not hold open what the program closes."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(slots=True)
class Supply:
    """The holder's end."""

    descriptor: int | None = None
    is_taken: bool = False
    """Whether a client has had it."""

    def lend(self) -> tuple[int | None, bool]:
        """A descriptor to write to, and whether this is the first; None where there is no input, or no more."""
        if self.descriptor is None:
            return None, False
        is_first, self.is_taken = not self.is_taken, True
        return os.dup(self.descriptor), is_first

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def open_console(kind: Input, log: int) -> tuple[Console, Supply]:
    """`log` takes what the program writes. The console's descriptors, but for the log, are to be closed when the program has them."""
    match kind:
        case Input.NONE:
            return Console(os.open(os.devnull, os.O_RDONLY), log), Supply()
        case Input.PIPE:
            theirs, ours = os.pipe()
            os.set_blocking(ours, False)
            return Console(theirs, log), Supply(ours)
        case Input.TERMINAL:
            ours, theirs = os.openpty()
            os.set_blocking(ours, False)
            return Console(theirs, log, os.dup(ours)), Supply(ours)


def record(console: Console, ended: Callable[[], int | None]) -> int:
    """Copies what a terminal shows to the log until a child's exit code is known; `ended` is asked for it at every signal.

    Nothing is lost of what was written before: the terminal is read until all processes have closed it.
    """
    assert console.terminal is not None
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(console.terminal, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while (code := ended()) is None:
        poll.poll()
        with contextlib.suppress(BlockingIOError):
            os.read(woken, CHUNK)
        _copy(console.terminal, console.output)
    return code


def drain(console: Console) -> None:
    """Once the program and all that it started have ended."""
    assert console.terminal is not None
    os.close(console.input)
    poll = select.poll()
    poll.register(console.terminal, select.POLLIN)
    while poll.poll(DRAIN_MS) and _copy(console.terminal, console.output):
        pass


def _copy(terminal: int, log: int) -> bool:
    """False when all processes have closed the terminal. A log that can take no more, on a full disk, loses what does not fit."""
    try:
        shown = os.read(terminal, CHUNK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.write(log, shown)
    return bool(shown)
