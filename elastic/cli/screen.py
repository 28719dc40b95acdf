"""Draw on a terminal's screen again and again, and leave the terminal as it was. This module does not know what it shows."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

ENTER = "\x1b[?1049h\x1b[?25l"
"""Switch to another screen than the shell's, and hide the cursor."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[2K", "\x1b[J"
"""Go to the upper left corner, clear this line, and clear everything below."""


def is_there() -> bool:
    """Return whether standard output is a terminal that obeys commands."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """Draws text without colour."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._text = ""

    def enter(self) -> None:
        self._out.write(ENTER)
        self._out.flush()

    def leave(self) -> None:
        self._out.write(LEAVE)
        self._out.flush()

    def again(self) -> None:
        """Draw the last text again, on a screen that was left."""
        self.enter()
        self.draw(self._text)

    def draw(self, text: str) -> None:
        """Draw the text from the top, over the former text. If it does not fit, the last line counts the missing ones."""
        self._text = text
        columns, rows = shutil.get_terminal_size()
        lines = text.split("\n")
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"... and {len(lines) - rows + 1} more lines"]
        # Text in the last column may begin the next line.
        self._out.write(HOME + "\n".join(f"{LINE}{line[: columns - 1]}" for line in lines) + REST_OF_SCREEN)
        self._out.flush()


@contextmanager
def opened(out: TextIO | None = None) -> Iterator[Screen]:
    """Open a screen until the block ends, in whatever way it ends."""
    screen = Screen(out or sys.stdout)
    screen.enter()
    try:
        yield screen
    finally:
        screen.leave()
