"""Show what a command waits for: in one line that changes on a terminal, and elsewhere in a line whenever the words change."""

from __future__ import annotations

import shutil
import sys

import click

SAY_AGAIN_S = 10.0
CLEAR_LINE = "\r\x1b[K"


class Progress:
    def __init__(self) -> None:
        self._said, self._said_at = "", 0.0
        self._is_line_open = False

    def show(self, words: str, *, after_s: float) -> None:
        """Show the words, which are safe for a terminal."""
        text = f"waits for {words} ({after_s:.0f} s)"
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"{CLEAR_LINE}{text if len(text) <= width else f'{text[: width - 3]}...'}", err=True, nl=False)
            self._is_line_open = True
        elif words != self._said or after_s - self._said_at > SAY_AGAIN_S:
            click.echo(text, err=True)
            self._said, self._said_at = words, after_s

    def end(self) -> None:
        """Take the line away, so that the next output begins at the left edge."""
        if self._is_line_open:
            click.echo(CLEAR_LINE, err=True, nl=False)
            self._is_line_open = False
