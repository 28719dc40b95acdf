"""Say in words how a process ended."""

from __future__ import annotations

import signal

from .messages.bounds import printable


def with_status(status: int) -> str:
    """Return the exit status in words. Above 128 it contains the number of a signal."""
    try:
        return f"with status {status}, {signal.Signals(status - 128).name}"
    except ValueError:
        return f"with status {status}"


def with_error(words: str, *, rank: int | None, error: str) -> str:
    """Add the rank and the line of its exception to the words about a failure. A container chose both, so they are cut and escaped."""
    if rank is None:
        return words
    line = printable(error)
    return f"{words} (rank {rank}{': ' if line else ''}{line})"
