"""Manifests with places for values. `elastic install` puts values in, and scripts/chart.py writes the places as Helm's templates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.cli.installing.values.given import at

Values = Mapping[str, Any]
MORE = "$more"
"""Key of a map under which further entries come from values."""


class _Absent:
    """The value of a key or an entry that is left out."""


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class Is:
    """The value at this path is true."""

    path: str


@dataclass(frozen=True, slots=True)
class Equals:
    path: str
    word: str


@dataclass(frozen=True, slots=True)
class MoreThan:
    path: str
    number: int


@dataclass(frozen=True, slots=True)
class Not:
    of: Is | Equals


@dataclass(frozen=True, slots=True)
class Both:
    one: Condition
    other: Condition


Condition = Is | Equals | MoreThan | Not | Both


def holds(condition: Condition, values: Values) -> bool:
    match condition:
        case Is(path):
            return bool(at(values, path))
        case Equals(path, word):
            return bool(at(values, path) == word)
        case MoreThan(path, number):
            return bool(at(values, path) > number)
        case Not(of):
            return not holds(of, values)
        case Both(one, other):
            return holds(one, values) and holds(other, values)


@dataclass(frozen=True, slots=True)
class When:
    """A part that the manifest has only under a condition."""

    condition: Condition
    value: Any
    otherwise: Any = ABSENT


@dataclass(frozen=True, slots=True)
class Put:
    """The value at this path, which is never empty. A text may surround it."""

    path: str
    text: str = "{}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The first of these values that is not empty, else another part. A text may surround it."""

    paths: tuple[str, ...]
    otherwise: Any = ABSENT
    text: str = "{}"


@dataclass(frozen=True, slots=True)
class Joined:
    """The maps at these paths as one, in which the first ones win. Absent if it is empty."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class More:
    """Further entries of a list: those of each of these lists."""

    paths: tuple[str, ...]


def resolved(node: Any, values: Values, text: Callable[[str], str]) -> Any:
    """Return the manifest with the values in their places. `text` changes the manifest's own strings, but no value."""
    match node:
        case str():
            return text(node)
        case list():
            return _list(node, values, text)
        case dict():
            made = {key: resolved(value, values, text) for key, value in node.items() if key != MORE}
            made = {key: value for key, value in made.items() if value is not ABSENT}
            more = resolved(node[MORE], values, text) if MORE in node else ABSENT
            return {**made, **more} if isinstance(more, dict) else made
        case When(condition, value, otherwise):
            return resolved(value if holds(condition, values) else otherwise, values, text)
        case Put(path, surrounding):
            return _surrounded(at(values, path), surrounding)
        case Chosen(paths, otherwise, surrounding):
            found = next((value for path in paths if (value := at(values, path))), ABSENT)
            return resolved(otherwise, values, text) if found is ABSENT else _surrounded(found, surrounding)
        case Joined(paths):
            joined = {key: value for path in reversed(paths) for key, value in at(values, path).items()}
            return joined or ABSENT
        case _:
            return node


def _list(items: list[Any], values: Values, text: Callable[[str], str]) -> list[Any]:
    made: list[Any] = []
    for item in items:
        if isinstance(item, More):
            made += [entry for path in item.paths for entry in at(values, path)]
        elif (entry := resolved(item, values, text)) is not ABSENT:
            made.append(entry)
    return made


def _surrounded(value: Any, text: str) -> Any:
    return value if text == "{}" else text.format(value)
