"""Check the size and the depth of an object before it is parsed.

So code that reads a job afterwards may recurse without its own bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elastic.api.errors import Path, Problem, shown

MOST_DEPTH = 100
MOST_VALUES = 100_000
"""Entries of all objects and lists together."""
MOST_CHARACTERS = 3 * 512 * 1024
"""Characters of all strings and keys together: etcd takes no object of more than 1.5 MiB."""
MOST_STATUS_BYTES = 1024 * 1024
"""Largest size of a job's status (`controller/deciding/status_room.py`)."""
MOST_BYTES = 480 * 1024
"""Bytes of a job without its status, so that etcd takes both together. 32 KiB are left for additions of others: labels, finalizers, and the
managers of fields.
"""
_LONG_SCALAR = 24
_AS_JSON = str.maketrans(dict.fromkeys((*map(chr, range(32)), *"<>&\u2028\u2029"), "\\u0000") | {'"': '\\"', "\\": "\\\\"})
"""Characters that the API server escapes when it writes JSON."""


def excess(obj: object) -> Problem | None:
    """Return why an object is too large or too deep to be examined, or holds invalid text; None if it is fine. Each value is seen once."""
    values = characters = 0
    waiting: list[tuple[Path, Any]] = [((), [obj])]
    while waiting:
        at, holder = waiting.pop()
        values += len(holder)
        if values > MOST_VALUES:
            return Problem((), f"there are more than {MOST_VALUES} values; a job needs fewer")
        if len(at) > MOST_DEPTH:
            return Problem(at[1 : MOST_DEPTH // 10], f"this is nested more than {MOST_DEPTH} deep; a job is not")
        for key, item in _entries(holder):
            if isinstance(item, dict | list | tuple):
                waiting.append(((*at, key), item))
            for text in (key, item):
                if isinstance(text, str):
                    characters += len(text)
                    if not text.isascii() and not _is_text(text):
                        return Problem((*at, key)[1:], "this holds half a character (a lone surrogate); write text that UTF-8 can hold")
        if characters > MOST_CHARACTERS:
            return Problem((), f"there are more than {MOST_CHARACTERS} characters; no API server stores so large a job")
    return None


def crowds_out_its_status(obj: Mapping[str, Any]) -> Problem | None:
    """Return why the API server could not store the status of this job, or None if it could."""
    if stored_bytes({key: value for key, value in obj.items() if key != "status"}) <= MOST_BYTES:
        return None
    message = (
        f"without its status the job is larger than {MOST_BYTES // 1024} KiB, so that the API server could not store its status as well;"
        " shorten it, for example by moving long texts from the pod templates to a ConfigMap"
    )
    return Problem((), message)


def stored_bytes(obj: object) -> int:
    """Return the bytes that an object takes as JSON in etcd, or a little more."""
    total, waiting = 0, [obj]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            total += _text_bytes(item)
        elif isinstance(item, dict):
            total += 2 + 2 * len(item)
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            total += 2 + len(item)
            waiting.extend(item)
        else:
            total += _LONG_SCALAR if isinstance(item, int | float) and not isinstance(item, bool) else len("false")
    return total


def _text_bytes(text: str) -> int:
    return 2 + len(text.translate(_AS_JSON).encode(errors="replace"))


def _entries(holder: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(holder, dict):
        return enumerate(holder)
    if all(isinstance(key, str) for key in holder):
        return holder.items()
    return ((key if isinstance(key, str | int) else shown(key), item) for key, item in holder.items())


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
