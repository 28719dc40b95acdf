"""Bound the bytes of each growing list of `status.elastic`.

With the bounds, etcd can store the whole job (at most 1.5 MiB) and the parser can read it. A full list takes no more entries, and the
controller acts on further ones only once others have gone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from elastic.api.book import Leaving

Entry = TypeVar("Entry")

KIB = 1024
OPEN_BYTES = 352 * KIB
"""Room of `open`: a loss of each worker of the largest job."""
COUNTED_BYTES = 416 * KIB
"""Room of `counted`."""
KEPT_FOR_PODS_BYTES = 32 * KIB
"""Part of that room that ends of containers leave to pods: a failed pod is deleted once it is counted, which makes room again."""
LEAVING_BYTES = 160 * KIB
"""Room of `leaving`: about a thousand workers leave at a time."""
MOST_NAMES = 5


def with_counted(known: Sequence[str], new: Iterable[str], *, room: int = COUNTED_BYTES) -> tuple[str, ...]:
    """Return the entries of `counted` with as many new entries as there is room for."""
    return (*known, *_fitting(new, map(_size_of_text, known), size=_size_of_text, room=room))


def with_leaving(known: Sequence[Leaving], new: Iterable[Leaving]) -> tuple[Leaving, ...]:
    """Return the entries of `leaving` with as many new entries as there is room for. Other notes of known entries give way."""
    if sum(map(_size_of_leaving, known)) > LEAVING_BYTES:
        known = [msgspec.structs.replace(entry, others=()) for entry in known]
    return (*known, *_fitting(new, map(_size_of_leaving, known), size=_size_of_leaving, room=LEAVING_BYTES))


def _fitting(new: Iterable[Entry], taken: Iterable[int], *, size: Callable[[Entry], int], room: int) -> list[Entry]:
    left, fitting = room - sum(taken), []
    for entry in new:
        left -= size(entry)
        if left < 0:
            break
        fitting.append(entry)
    return fitting


def _size_of_text(text: str) -> int:
    return len(text) + len('"",')


def _size_of_leaving(entry: Leaving) -> int:
    return len(msgspec.json.encode(entry)) + len(",")


def listed(names: Sequence[str]) -> str:
    """Return the first of these names, and the number of the others."""
    more = len(names) - MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMES])} and {more} more"
