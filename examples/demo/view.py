"""How the demo shows what happens: lines, and on a terminal below them one line that lives.

Elsewhere a line says how it stands whenever nothing else was printed for some seconds. Knows nothing of training.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

QUIET_S = 4.0
FRAME_S = 0.2
CLEAR = "\r\x1b[2K"


class View:
    """`standing` says in one line how it stands now; empty: there is nothing to say."""

    def __init__(self, standing: Callable[[], str], out: TextIO = sys.stdout, *, quiet_s: float = QUIET_S) -> None:
        self._standing, self._out, self._quiet_s = standing, out, quiet_s
        self.lives = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._lock = threading.Lock()
        self._printed_at = time.monotonic()
        self._shown = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> View:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the live line and keep the others."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._draw("")

    def line(self, text: str) -> None:
        with self._lock:
            is_below, self._shown = bool(self._shown), ""
            self._out.write(f"{CLEAR if is_below else ''}{text}\n")
            self._draw(self._standing() if is_below else "")
            self._out.flush()
            self._printed_at = time.monotonic()

    def _run(self) -> None:
        while not self._ended.wait(FRAME_S):
            try:
                self._refresh()
            except OSError:  # the reader has gone; the next printed line raises that error where it is handled
                return

    def _refresh(self) -> None:
        if self.lives:
            with self._lock:  # with what stands when it is drawn, below the last line
                self._draw(self._standing())
        elif time.monotonic() - self._printed_at > self._quiet_s and (text := self._standing()):
            self.line(text)

    def _draw(self, text: str) -> None:
        """On one line, however narrow the terminal is: a second one would not be cleared."""
        text = text[: shutil.get_terminal_size().columns - 1] if self.lives else ""
        if text != self._shown:
            self._out.write(CLEAR + text)
            self._out.flush()
            self._shown = text
