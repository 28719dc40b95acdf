"""Bounds of the fields of messages, and the base of what a member sends."""

from typing import Annotated

import msgspec
from msgspec import Meta

from elastic.api.book import MOST_MEMBERS, MOST_TIMES, PLAIN

MAX_WORDS = 1024
MAX_ERROR = 300  # characters of the line of an exception in a reason

Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=PLAIN)]
NameOrNone = Annotated[str, Meta(max_length=253, pattern=PLAIN)]
Words = Annotated[str, Meta(max_length=MAX_WORDS)]
MOST_SECONDS = 366 * 86400
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
MOST_COUNTED = MOST_TIMES
Count = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
Generation = Annotated[int, Meta(ge=0, le=2**53)]
KnownGeneration = Annotated[int, Meta(ge=0, le=2**52)]
"""A generation from which the next ones are counted: it leaves room for them."""
Milliseconds = Annotated[int, Meta(ge=0, le=2**53)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
CauseWord = Annotated[str, Meta(max_length=64, pattern=PLAIN)]
PodUid = Annotated[str, Meta(max_length=128, pattern=PLAIN)]
Address = Annotated[str, Meta(max_length=300, pattern=PLAIN)]

MAX_MEMBERS = MOST_MEMBERS
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_MEMBERS)]
Size = Annotated[int, Meta(ge=1, le=MAX_MEMBERS)]
Rank = Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)]


def clipped(words: str) -> str:
    """Return the text, cut to the length that a message may hold."""
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 3] + "..."


def printable(text: str) -> str:
    """Escape what is not printable, and cut the text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:MAX_ERROR])[:MAX_ERROR]


class Up(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag=str.lower):
    """Base of what a member sends."""
