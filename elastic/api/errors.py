"""Describe the problems of a job in words with which its author can find and fix them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake: its place, what was found, and what to do."""

    at: Path
    message: str

    @property
    def path(self) -> str:
        return dotted(self.at)

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.at else self.message


class Warning(Problem):
    """Something the author should know; the job is taken all the same."""

    __slots__ = ()


class SpecError(ValueError):
    """A job that cannot be run, with everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Warning] = (), *, is_whole: bool = True) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        self.is_whole = is_whole
        """False: there are more problems than are listed."""
        super().__init__("; ".join(map(str, self.problems)))


def dotted(at: Path) -> str:
    """Return a path such as `spec.containers[0].env`. A key that is no plain word is in brackets."""
    text = ""
    for part in at:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.match(part):
            text += f".{part}" if text else part
        else:
            text += f"[{shortened(part)!r}]"
    return text


def shown(value: Any) -> str:
    """Return a value for a message. The text is short, and no value makes this fail."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{shortened(value)}"'
        case int():
            return str(value) if abs(value) < 10**18 else "a number beyond 64 bits"
        case float():
            return repr(value) if math.isfinite(value) else "no finite number"
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def shortened(text: str) -> str:
    """Return a word of the user for a message."""
    text = "".join(c if c.isprintable() else "?" for c in text[: _LONGEST_SHOWN + 1])
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
