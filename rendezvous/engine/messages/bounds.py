"""Bounds of the fields of messages, as metadata of their types. The engine relies on them, and codecs enforce them."""

from __future__ import annotations

from typing import Annotated

from ..values import dataclass


@dataclass(frozen=True)
class Bound:
    """The bound of a field: the length of a text, the value of a number, or how many entries there are.

    above: the number is greater. is_plain: the text is printable ASCII that JSON does not escape, so each character is one byte.
    """

    least: int | None = None
    most: int | None = None
    above: int | None = None
    is_plain: bool = False


MAX_WORDS = 1024
MAX_ERROR = 300  # characters of the line of an exception in a reason
MAX_MEMBERS = 8192
"""Members of one job; elastic.api.book has the same number for jobs."""
MOST_SECONDS = 366 * 86400
MOST_COUNTED = 1_000_000
"""Counters stay there; elastic.api.book has the same number for jobs."""

Name = Annotated[str, Bound(least=1, most=253, is_plain=True)]
NameOrNone = Annotated[str, Bound(most=253, is_plain=True)]
Words = Annotated[str, Bound(most=MAX_WORDS)]
Seconds = Annotated[float, Bound(least=0, most=MOST_SECONDS)]
SomeSeconds = Annotated[float, Bound(above=0)]
Count = Annotated[int, Bound(least=0, most=MOST_COUNTED)]
Generation = Annotated[int, Bound(least=0, most=2**53)]
KnownGeneration = Annotated[int, Bound(least=0, most=2**52)]
"""A generation from which the next ones are counted: it leaves room for them."""
Milliseconds = Annotated[int, Bound(least=0, most=2**53)]
Step = Annotated[int, Bound(least=0, most=2**53)]
CauseWord = Annotated[str, Bound(most=64, is_plain=True)]
PodUid = Annotated[str, Bound(most=128, is_plain=True)]
Address = Annotated[str, Bound(most=300, is_plain=True)]
Names = Annotated[tuple[Name, ...], Bound(most=MAX_MEMBERS)]
Size = Annotated[int, Bound(least=1, most=MAX_MEMBERS)]
Rank = Annotated[int, Bound(least=0, most=MAX_MEMBERS - 1)]


def clipped(words: str) -> str:
    """Return the text, cut to the length that a message may hold."""
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 3] + "..."


def printable(text: str) -> str:
    """Escape what is not printable, and cut the text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:MAX_ERROR])[:MAX_ERROR]
