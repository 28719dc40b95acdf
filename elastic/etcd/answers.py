"""Reads what an etcd answers, within bounds: two bytes may stand for an empty part that would take a hundred here, a million times."""

from typing import Any

from elastic.etcd.store import Away

LONGEST_ANSWER = 4 * 1024 * 1024
MOST_PARTS = 20_000
"""An honest answer has as many parts as it has keys or events."""


def parsed(kind: Any, data: bytes) -> Any:
    """The message of this class. Raises Away."""
    from google.protobuf.message import DecodeError

    try:
        if _parts(data) > MOST_PARTS:
            raise Away(f"its answer has more than {MOST_PARTS} parts")
        return kind.FromString(data)
    except (DecodeError, ValueError, IndexError):
        raise Away("its answer is not etcd's") from None


def _parts(data: bytes) -> int:
    """How many fields there are, inner ones not counted; or more than MOST_PARTS. Raises ValueError or IndexError."""
    at = count = 0
    while at < len(data) and count <= MOST_PARTS:
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:  # a number
                _, at = _varint(data, at)
            case 1:  # eight bytes
                at += 8
            case 2:  # text, or a message
                length, at = _varint(data, at)
                at += length
            case 5:  # four bytes
                at += 4
            case _:
                raise ValueError(tag)
        count += 1
    return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError(value)
