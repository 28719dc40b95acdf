"""How large and how deep an object may be, checked before it is parsed. Code that reads a job afterwards may recurse
without a bound of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elastic.api.errors import Path, Problem, shown

MOST_DEPTH = 100
MOST_VALUES = 100_000
"""Entries of all objects and lists together."""
MOST_CHARACTERS = 3 * 512 * 1024
"""Of all strings and keys together: etcd takes no object of more than 1.5 MiB."""


def excess(obj: object) -> Problem | None:
    """Why it is too large or too deep to be looked at, or holds text that is none; None if it is not. Looks at each value once at most."""
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
            texts = [text for text in (key, item) if isinstance(text, str)]
            characters += sum(map(len, texts))
            if not all(map(_is_text, texts)):
                return Problem((*at, key)[1:], "this holds half a character (a lone surrogate); write text that UTF-8 can hold")
        if characters > MOST_CHARACTERS:
            return Problem((), f"there are more than {MOST_CHARACTERS} characters; no API server stores so large a job")
    return None


def _entries(holder: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(holder, dict):
        return enumerate(holder)
    return ((key if isinstance(key, str | int) else shown(key), item) for key, item in holder.items())


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
