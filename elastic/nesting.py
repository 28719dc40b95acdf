"""Bound the cost of reading YAML and JSON, without recursion.

PyYAML composes values by recursion in C without a limit, so a few kilobytes of brackets end the process. The code that reads the values
afterwards recurses in Python. PyYAML also copies the keys that an alias merges (`<<: *a`), and the cost of its numbers of base 60 grows
with the square of their length.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from elastic.api.extent import MOST_DEPTH

TOO_DEEP = f"this is nested more than {MOST_DEPTH} deep"
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def line_too_deep(text: str | bytes) -> int | None:
    """Return the first line of YAML that is nested too deep, or None. Raise YAMLError if the text is no YAML."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                return event.start_mark.line + 1 if event.start_mark else 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


MOST_ALIASED = 3 << 20
"""Characters and values that the aliases of a text may add to it, if each is written out. An API server takes no larger text."""
MOST_DIGITS = 400
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def line_too_costly(text: str | bytes) -> tuple[int, str] | None:
    """Return the first line at which aliases add too much or a number is too long, with the problem, or None. May raise YAMLError."""
    sizes: dict[str, int] = {}
    size = added = 0
    holders: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            more = sizes.get(event.anchor or "", 1)  # a value that contains itself is too deep anyway
            size, added = size + more, added + more
            if added > MOST_ALIASED:
                return line, f"its aliases stand for more than {MOST_ALIASED} characters"
        elif isinstance(event, yaml.ScalarEvent):
            size += 1 + len(event.value)
            if _is_long_number(event):
                return line, f"a number has more than {MOST_DIGITS} digits"
            if event.anchor:
                sizes[event.anchor] = 1 + len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            holders.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = holders.pop()
            if anchor:
                sizes[anchor] = size - before
    return None


def _is_long_number(event: yaml.ScalarEvent) -> bool:
    if len(event.value) <= MOST_DIGITS:
        return False
    return event.tag in _NUMBERS or (event.implicit[0] and _BASE_60.fullmatch(event.value) is not None)


def is_too_deep(value: Any) -> bool:
    """Return whether plain values are nested too deep. They may be shared or contain themselves, so each is visited once on each level."""
    level = [value]
    for _ in range(MOST_DEPTH):
        parts = [part for holder in level for part in _parts(holder) if isinstance(part, dict | list)]
        if not parts:
            return False
        level = list({id(part): part for part in parts}.values())
    return True


def _parts(holder: Any) -> Any:
    return holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else ()
