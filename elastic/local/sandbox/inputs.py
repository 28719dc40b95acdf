"""Make a container's input: nothing, a pipe, or a terminal, which takes its output too.

One end is the container's. The other is the holder's, which lends it to clients and keeps it while the container runs, so that clients may
come and go. Unread input is in the kernel, which takes no more than a pipe holds.
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
"""Milliseconds to wait for a terminal's last output. Its last user has gone, unless another process opened it by its name."""


@dataclass(frozen=True, slots=True)
class Console:
    """Streams of the container's main process: an input, an output, and the far end of both if they are a terminal."""

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
        """Make the console that of this session, and return the program's streams."""
        if self.terminal is None:
            return self.input, self.output, self.output
        fcntl.ioctl(self.input, termios.TIOCSCTTY, 0)
        return self.input, self.input, self.input

    def leave(self) -> None:
        """Close the console in a process between the holder and the program, because it must not keep open what the program closes."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(slots=True)
class Supply:
    """The holder's end of an input."""

    descriptor: int | None = None
    is_taken: bool = False
    """Whether a client has had it."""

    def lend(self) -> tuple[int | None, bool]:
        """Return a descriptor to write to, and whether it is the first; None if there is no input, or it has ended."""
        if self.descriptor is None:
            return None, False
        is_first, self.is_taken = not self.is_taken, True
        return os.dup(self.descriptor), is_first

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def open_console(kind: Input, log: int) -> tuple[Console, Supply]:
    """Open a console. `log` gets the program's output. Close the other descriptors of the console when the program has them."""
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
    """Copy a terminal's output to the log until a child's exit code is known. `ended` is asked for the code at every signal.

    No output before the end is lost: `drain` reads the terminal until all processes have closed it.
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
    """Copy the last output, after the program and all its children have ended."""
    assert console.terminal is not None
    os.close(console.input)
    poll = select.poll()
    poll.register(console.terminal, select.POLLIN)
    while poll.poll(DRAIN_MS) and _copy(console.terminal, console.output):
        pass


def _copy(terminal: int, log: int) -> bool:
    """Copy some output. Return False when all processes have closed the terminal. If the disk is full, the output is lost."""
    try:
        shown = os.read(terminal, CHUNK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.write(log, shown)
    return bool(shown)
