"""How deep YAML and JSON may be nested, found out without recursion. PyYAML composes by recursion in C without a limit, so that a few
kilobytes of brackets end the process; what reads the values afterwards recurses in Python.
"""

from __future__ import annotations

from typing import Any

import yaml

from elastic.api.extent import MOST_DEPTH

TOO_DEEP = f"this is nested more than {MOST_DEPTH} deep"
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def line_too_deep(text: str | bytes) -> int | None:
    """The first line of YAML that is nested too deep; None if there is none. Raises YAMLError for what is no YAML."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                return event.start_mark.line + 1 if event.start_mark else 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def is_too_deep(value: Any) -> bool:
    """Of plain values, which may be shared or contain themselves: each is looked at once on each level."""
    level = [value]
    for _ in range(MOST_DEPTH):
        parts = [part for holder in level for part in _parts(holder) if isinstance(part, dict | list)]
        if not parts:
            return False
        level = list({id(part): part for part in parts}.values())
    return True


def _parts(holder: Any) -> Any:
    return holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else ()
