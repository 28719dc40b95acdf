"""Read plain JSON into a struct, and collect every mistake instead of stopping at the first.

Valid input takes msgspec's own conversion. Only if it refuses, this module walks the object field by field, to say what is wrong and where.
A null is the same as an absent field, and an unknown field is a warning.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

from elastic.api.errors import Path, Problem, Warning, shortened, shown

T = TypeVar("T", bound=msgspec.Struct)

MOST_PROBLEMS = 50
"""Problems listed of one job. The author fixes these first."""
MOST_WARNINGS = 50

FORM = "form"
"""Key in the `extra` of a Meta: words that say how to write a string with a pattern."""

_INVALID = object()
_AWARE: Any = Annotated[datetime, msgspec.Meta(tz=True)]


class TooMany(Exception):
    """The list of problems is full, so reading stops."""


class Findings:
    """The problems found so far in the whole job."""

    __slots__ = ("_above", "_places", "_untold", "elsewhere", "problems", "warnings")

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Warning] = []
        self.elsewhere: Mapping[str, str] = {}
        """The place of a field that has one place in the job's spec, by its name."""
        self._places: set[Path] = set()
        self._above: set[Path] = set()
        """Place of each problem, and all places above it."""
        self._untold = 0

    def problem(self, at: Path, message: str) -> None:
        """Note a problem. Raise TooMany if the list is full."""
        if len(self.problems) == MOST_PROBLEMS:
            raise TooMany
        self.problems.append(Problem(at, message))
        self._places.add(at)
        self._above.update(at[:length] for length in range(len(at) + 1))

    def wrong(self, at: Path, rest: str) -> None:
        """Note a problem that begins with the name of the field."""
        self.problem(at, f"{shown_key(at[-1]) if at and isinstance(at[-1], str) else 'this'} {rest}")

    def warning(self, at: Path, message: str) -> None:
        if self.has_room:
            self.warnings.append(Warning(at, message))
        else:
            self._untold += 1

    @property
    def has_room(self) -> bool:
        """Return whether one more warning may be listed."""
        return len(self.warnings) < MOST_WARNINGS

    def all_warnings(self) -> list[Warning]:
        """Return the warnings, with the number of those that are not shown."""
        return [*self.warnings, Warning((), f"{self._untold} more warnings are not shown")] if self._untold else self.warnings

    def blames(self, at: Path) -> bool:
        """Return whether there is a problem at this path or below. Then rules about it would only repeat it."""
        return at in self._above

    def names(self, at: Path) -> bool:
        """Return whether there is a problem at exactly this path."""
        return at in self._places

    def unknown(self, at: Path, name: Any, known: Iterable[str]) -> None:
        place = self.elsewhere.get(name) if isinstance(name, str) else None
        hint = self.hint(name, known) if place is None else f"; did you mean {place}?"
        self.warning((*at, key_in_path(name)), f"unknown field, it has no effect{hint}")

    def hint(self, word: Any, known: Iterable[str]) -> str:
        """Return `did_you_mean` for a warning. Search only if the warning is shown, because the search takes time."""
        return did_you_mean(word, known) if self.has_room else ""


def read(value: Any, cls: type[T], *, at: Path, findings: Findings) -> T | None:
    """Return the struct. Wrong fields are noted and have their defaults. None if not even that could be made."""
    try:
        return msgspec.convert(value, cls)
    except (msgspec.ValidationError, OverflowError):
        made = _walk(value, _info(cls), at, findings)
        return None if made is _INVALID else made


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """`; did you mean minReplicas?`, or nothing when no known word is near."""
    near = nearest(word, known) if isinstance(word, str) else None
    return f"; did you mean {near}?" if near is not None else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, if one is similar."""
    by_lower = {name.lower(): name for name in known}
    typed = word.lower()[:100]
    swapped = [name for name in by_lower if sorted(name) == sorted(typed)]
    near = difflib.get_close_matches(typed, by_lower, n=1, cutoff=0.7) or swapped
    return by_lower[near[0]] if near else None


def no_string(value: Any) -> str:
    """Return the problem of a value that should be a string: YAML makes booleans and numbers of words without quotes."""
    if not isinstance(value, bool | int | float):
        return f"is {shown(value)}; a string is needed"
    what = "a boolean" if isinstance(value, bool) else "a number"
    return f'is {shown(value)}, {what}; write it in quotes: "{shown(value)}"'


def shown_key(key: Any) -> str:
    """Return a key for a message."""
    return shortened(key) if isinstance(key, str) else shown(key)


def key_in_path(key: Any) -> str:
    return key if isinstance(key, str) else shown(key)


def one_of(words: Iterable[str]) -> str:
    """Return the words as `a, b or c`."""
    listed = [word or '""' for word in words]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"


@functools.cache
def _info(cls: type) -> inspect.Type:
    return inspect.type_info(cls)


def _walk(value: Any, node: inspect.Type, at: Path, findings: Findings) -> Any:
    """Return the converted value, or _INVALID after a problem was noted."""
    match node:
        case inspect.Metadata():
            form = (node.extra or {}).get(FORM)
            return _walk(value, node.type, at, findings) if form is None else _walk_form(value, node.type, form, at, findings)
        case inspect.UnionType():
            return _walk_union(value, node, at, findings)
        case inspect.AnyType():
            return value
        case inspect.StructType():
            return _walk_struct(value, node, at, findings)
        case inspect.DictType():
            return _walk_dict(value, node, at, findings)
        case inspect.VarTupleType():
            return _walk_list(value, node, at, findings)
        case inspect.EnumType():
            return _walk_enum(value, node.cls, at, findings)
        case inspect.StrType():
            return _walk_str(value, node, at, findings)
        case inspect.IntType():
            return _walk_int(value, node, at, findings)
        case inspect.BoolType():
            return value if isinstance(value, bool) else _wrong(at, findings, f"is {shown(value)}; write true or false")
        case inspect.DateTimeType():
            return _walk_time(value, at, findings)
        case _:
            raise TypeError(f"the model uses {node}, which the reader does not know")


def _walk_form(value: Any, node: inspect.Type, form: str, at: Path, findings: Findings) -> Any:
    """Return the string, or note how to write it: a regular expression would tell that to few authors."""
    found = _walk(value, node, at, Findings())
    return _wrong(at, findings, f"is {shown(value)}; {form}") if found is _INVALID else found


def _wrong(at: Path, findings: Findings, rest: str) -> Any:
    findings.wrong(at, rest)
    return _INVALID


def _walk_union(value: Any, node: inspect.UnionType, at: Path, findings: Findings) -> Any:
    """Return the value of a union, which is a type or null, or an integer or a string."""
    kinds = [kind for kind in node.types if not isinstance(kind, inspect.NoneType)]
    if value is None and len(kinds) < len(node.types):
        return None
    if len(kinds) == 1:
        return _walk(value, kinds[0], at, findings)
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    return _wrong(at, findings, f"is {shown(value)}; write a whole number, or a string in quotes")


def _walk_struct(value: Any, node: inspect.StructType, at: Path, findings: Findings) -> Any:
    if not isinstance(value, dict):
        return _wrong(at, findings, f"is {shown(value)}; an object is needed")
    fields = {field.encode_name: field for field in node.fields}
    made: dict[str, Any] = {}
    for key, item in value.items():
        if key in fields and item is not None:
            made[fields[key].name] = _walk(item, fields[key].type, (*at, key), findings)
        elif key not in fields and getattr(node.cls, "IS_CLOSED", False):
            holder = at[-1] if isinstance(at[-1], str) else f"each of {at[-2]}"
            findings.problem((*at, key_in_path(key)), f"unknown field; {holder} takes only {one_of(fields)}")
        elif key not in fields:
            findings.unknown(at, key, fields)
    for name, field in fields.items():
        if field.required and field.name not in made:
            findings.problem((*at, name), f"{name} is missing")
    valid = {name: item for name, item in made.items() if item is not _INVALID}
    is_complete = all(field.name in valid for field in node.fields if field.required)
    return node.cls(**valid) if is_complete else _INVALID


def _walk_dict(value: Any, node: inspect.DictType, at: Path, findings: Findings) -> Any:
    if not isinstance(value, dict):
        return _wrong(at, findings, f"is {shown(value)}; an object is needed")
    if node.max_length is not None and len(value) > node.max_length:
        return _wrong(at, findings, f"has {len(value)} entries; the most is {node.max_length}")
    made: dict[str, Any] = {}
    is_valid = True
    for key, item in value.items():
        if not isinstance(key, str):
            findings.problem(at, f"the key {shown(key)} is no string; write it in quotes")
            is_valid = False
            continue
        if item is None and not isinstance(node.value_type, inspect.AnyType):
            continue
        known, made[key] = _walk(key, node.key_type, (*at, key), findings), _walk(item, node.value_type, (*at, key), findings)
        is_valid = is_valid and known is not _INVALID and made[key] is not _INVALID
    return made if is_valid else _INVALID


def _walk_list(value: Any, node: inspect.VarTupleType, at: Path, findings: Findings) -> Any:
    if not isinstance(value, list | tuple):
        return _wrong(at, findings, f"is {shown(value)}; a list is needed")
    if node.max_length is not None and len(value) > node.max_length:
        return _wrong(at, findings, f"has {len(value)} entries; the most is {node.max_length}")
    made = tuple(_walk(item, node.item_type, (*at, i), findings) for i, item in enumerate(value))
    return _INVALID if any(item is _INVALID for item in made) else made


def _walk_enum(value: Any, cls: type[enum.Enum], at: Path, findings: Findings) -> Any:
    words = [str(member.value) for member in cls]
    if isinstance(value, str) and value in words:
        return cls(value)
    hint = did_you_mean(value, words)
    return _wrong(at, findings, f"is {shown(value)}; use {one_of(words)}{hint}")


def _walk_str(value: Any, node: inspect.StrType, at: Path, findings: Findings) -> Any:
    if not isinstance(value, str):
        return _wrong(at, findings, no_string(value))
    if node.max_length is not None and len(value) > node.max_length:
        return _wrong(at, findings, f"has {len(value)} characters; the most is {node.max_length}")
    if node.min_length is not None and len(value) < node.min_length:
        return _wrong(at, findings, "is empty; write a word")
    if node.pattern is not None and not re.search(node.pattern, value):
        return _wrong(at, findings, f"is {shown(value)}; it must match {node.pattern}")
    return value


def _walk_int(value: Any, node: inspect.IntType, at: Path, findings: Findings) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit():
        return _wrong(at, findings, f"is {shown(value)}, a string; write it without quotes")
    if isinstance(value, bool) or not isinstance(value, int):
        return _wrong(at, findings, f"is {shown(value)}; a whole number is needed")
    if node.ge is not None and value < node.ge:
        return _wrong(at, findings, f"is {shown(value)}; the least is {node.ge}")
    if node.le is not None and value > node.le:
        return _wrong(at, findings, f"is {shown(value)}; the most is {node.le}")
    return value


def _walk_time(value: Any, at: Path, findings: Findings) -> Any:
    try:
        return msgspec.convert(value, _AWARE)
    except msgspec.ValidationError:
        return _wrong(at, findings, f"is {shown(value)}; a time such as 2026-01-31T12:00:00Z is needed")
