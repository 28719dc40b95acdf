"""Lines of a log that comes in pieces. A line that does not end, as a hostile or broken program prints it, is cut into parts."""

from __future__ import annotations

from collections.abc import Iterator

LONGEST = 256 * 1024


class Lines:
    """What is told depends on the log alone, and not on the pieces in which it comes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def of(self, piece: bytes) -> Iterator[str]:
        """The lines that are whole now."""
        *ends, begin = piece.split(b"\n")
        for end in ends:
            self._rest += end
            yield from self._parts()
            yield self._taken()
        self._rest += begin
        yield from self._parts()

    def last(self) -> Iterator[str]:
        """What stands behind the last end of a line."""
        if self._rest:
            yield self._taken()

    def _parts(self) -> Iterator[str]:
        while len(self._rest) > LONGEST:
            part = bytes(self._rest[:LONGEST])
            del self._rest[:LONGEST]
            yield part.decode(errors="replace")

    def _taken(self) -> str:
        text = self._rest.decode(errors="replace")
        self._rest.clear()
        return text
