"""Join the pieces of a log into lines. A line without an end, which a hostile or broken program may print, is cut into parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 256 * 1024
_END = re.compile(rb"\r*\n|\r+")


class Text(NamedTuple):
    """One line."""

    text: str
    is_passing: bool = False
    """Whether a carriage return ended it, so that the next line overwrites it, as in a progress bar."""


class Lines:
    """The lines of a log. They depend on the log alone, not on the pieces in which it comes."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._has_returned = False
        """Whether the last character was a carriage return. The next one decides whether the line has ended with it."""

    def of(self, piece: bytes) -> Iterator[Text]:
        """Yield the lines that are whole now."""
        piece = b"\r" * self._has_returned + piece
        self._has_returned = piece.endswith(b"\r")
        piece = piece.rstrip(b"\r") if self._has_returned else piece
        at = 0
        for end in _END.finditer(piece):
            yield from self._more(piece[at : end.start()])
            at = end.end()
            is_passing = not end.group().endswith(b"\n")
            if self._rest or not is_passing:
                yield self._taken(is_passing=is_passing)
        yield from self._more(piece[at:])

    def last(self) -> Iterator[Text]:
        """Yield the rest after the last end of a line, at the end of the log."""
        if self._rest:
            yield self._taken()

    def _more(self, piece: bytes) -> Iterator[Text]:
        self._rest += piece
        while len(self._rest) > LONGEST:
            part = bytes(self._rest[:LONGEST])
            del self._rest[:LONGEST]
            yield Text(part.decode(errors="replace"))

    def _taken(self, *, is_passing: bool = False) -> Text:
        text = self._rest.decode(errors="replace")
        self._rest.clear()
        return Text(text, is_passing)
