"""Read the answers of an etcd, within bounds: two bytes may encode an empty part that takes a hundred bytes here, a million times."""

from typing import Any

from elastic.etcd.store import Away

LONGEST_ANSWER = 4 * 1024 * 1024
MOST_PARTS = 20_000
"""An honest answer has as many parts as it has keys or events."""


def parsed(kind: Any, data: bytes) -> Any:
    """Parse a message of this class. Raise Away if it is invalid or too large."""
    from google.protobuf.message import DecodeError

    try:
        if _parts(data) > MOST_PARTS:
            raise Away(f"its answer has more than {MOST_PARTS} parts")
        return kind.FromString(data)
    except (DecodeError, ValueError, IndexError):
        raise Away("its answer is not etcd's") from None


def _parts(data: bytes) -> int:
    """Count the fields without inner ones, up to a little more than MOST_PARTS. Raise ValueError or IndexError if the data is invalid."""
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
    """Read a number, and return it with the position after it."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError(value)
