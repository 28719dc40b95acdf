"""Find what a controller still remembers of a job. It walks the attributes of the controller's parts, so a new map is covered too."""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from sim_process import Controller

OURS = ("controller.", "elastic.")
PARTS = ("observer", "queue", "_link", "_membership", "_reconciler", "_election")


def remembered(controller: Controller, words: set[str]) -> list[str]:
    """Return the places in the controller's parts that hold any of these words (names or uids)."""
    seen: set[int] = set()
    whole = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, words))})(?![a-z])")
    return [place for part in PARTS for place in _search(getattr(controller, part), whole, part, seen)]


def _search(value: Any, words: "re.Pattern[str]", place: str, seen: set[int]) -> Iterator[str]:
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        if words.search(text):
            yield f"{place}: {text[:80]}"
        return
    if value is None or isinstance(value, int | float) or id(value) in seen:
        return
    seen.add(id(value))
    for name, item in _inside(value):
        yield from _search(item, words, f"{place}{name}", seen)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield " key", key
            yield f"[{str(key)[:40]}]", item
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for item in list(value):
            yield "[]", item
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield f".{field.name}", getattr(value, field.name)
    elif type(value).__module__.startswith(OURS) and hasattr(value, "__dict__"):
        for name, item in vars(value).items():
            yield f".{name}", item
