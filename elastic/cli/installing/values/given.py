"""Read the values that a user gave in files and with `--set`, check them, and join them with the defaults."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic.cli.installing.values.kinds import unknown, wrong
from elastic.cli.installing.values.table import MOVED, SECTIONS, VALUES, WAS_SWITCH

Values = dict[str, Any]
SET = "--set"
PART = re.compile(r"(?:\\.|[^.\\])+")
_BY_NAME = {section.name: section for section in SECTIONS}


class BadValues(Exception):
    """Values are wrong. The text has one line for each problem."""


def read(source: str, text: str) -> Values:
    """Return the checked values of a file."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise BadValues(f"{source}: {where}not YAML: {getattr(error, 'problem', None) or 'invalid characters'}") from error
    if found is None:
        return {}
    try:
        json.dumps(found, default=str, skipkeys=True)
    except (ValueError, RecursionError) as error:
        raise BadValues(f"{source}: an alias refers to a value that contains it; write the value out") from error
    _refuse(source, problems(found) if isinstance(found, dict) else [wrong("values", found, "give a map, such as image: NAME")])
    checked: Values = found
    return checked


def read_file(path: Path) -> Values:
    try:
        return read(path.name, path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadValues(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from error


def settings(texts: Sequence[str]) -> Values:
    """Return the checked values of `--set a.b=c,d=e`."""
    made: Values = {}
    for text in texts:
        for one in _parts(text):
            path, is_set, value = one.partition("=")
            keys = [re.sub(r"\\(.)", r"\1", key) for key in PART.findall(path)]
            if not is_set or not keys:
                raise BadValues(f"{SET} {one}: give PATH=VALUE, such as controller.replicas=3")
            if "[" in path:
                raise BadValues(
                    f"{SET} {one}: an entry of a list cannot be set; give the whole list, such as PATH=[...], or a file with --values"
                )
            made = joined(made, _nested(keys, _typed(keys, value)))
    _refuse(SET, problems(made))
    return made


def problems(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with values, each with its path, what was found and what to do."""
    top = {value.name: value for value in _BY_NAME[""].values}
    for name, part in found.items():
        if name in top:
            yield from top[name].kind.problems(name, part)
        elif name in MOVED:
            yield f"{name}: {MOVED[name]}"
        elif name not in _BY_NAME:
            yield unknown("", str(name), [*top, *filter(None, _BY_NAME)])
        elif isinstance(part, bool) and name in WAS_SWITCH:
            yield wrong(name, part, f"give {name}.enabled: {str(part).lower()}")
        elif not isinstance(part, dict):
            yield wrong(name, part, f"give an object with values such as {_BY_NAME[name].values[0].name}")
        else:
            yield from _section_problems(name, part)


def _section_problems(section: str, found: Mapping[str, Any]) -> Iterator[str]:
    known = {value.name: value for value in _BY_NAME[section].values}
    for name, value in found.items():
        if name in known:
            yield from known[name].kind.problems(f"{section}.{name}", value)
        elif f"{section}.{name}" in MOVED:
            yield f"{section}.{name}: {MOVED[f'{section}.{name}']}"
        else:
            yield unknown(section, str(name), known)


def joined(*given: Mapping[str, Any]) -> Values:
    """Return the values of all maps; the later ones win. Maps are joined and lists replaced, as Helm does."""
    made: Values = {}
    for one in given:
        for key, value in one.items():
            there = made.get(key)
            made[key] = joined(there, value) if isinstance(there, dict) and isinstance(value, dict) else copy.deepcopy(value)
    return made


def complete(given: Mapping[str, Any]) -> Values:
    """Return all values: those given, and the defaults of the others. A null takes a default amount, label or field away."""
    made: Values = {}
    for path, value in VALUES.items():
        made = joined(made, _nested(path.split("."), copy.deepcopy(value.default)))
    whole: Values = _without_null(joined(made, given))
    return whole


def at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path."""
    found: Any = values
    for key in path.split("."):
        found = found[key]
    return found


def placed(path: str, value: Any) -> Values:
    """Return values that have only this one."""
    return _nested(path.split("."), value)


def without(given: Mapping[str, Any], path: str) -> Values:
    """Return the values without this one."""
    first, _, rest = path.partition(".")
    made = copy.deepcopy(dict(given))
    if rest and isinstance(made.get(first), dict):
        made[first] = without(made[first], rest)
        if not made[first]:
            del made[first]
    elif not rest:
        made.pop(first, None)
    return made


def _refuse(source: str, found: Iterator[str] | list[str]) -> None:
    if lines := [f"{source}: {line}" for line in found]:
        raise BadValues("\n".join(lines))


def _nested(keys: Sequence[str], value: Any) -> Values:
    for key in reversed(keys):
        value = {key: value}
    made: Values = value
    return made


def _typed(keys: Sequence[str], text: str) -> Any:
    """Return the value that a text means at this path. An unknown path is refused later."""
    if text == "null":
        return None
    for length in range(len(keys), 0, -1):
        if (value := VALUES.get(".".join(keys[:length]))) is not None:
            return value.kind.typed(text, keys[length:])
    return text


def _parts(text: str) -> Iterator[str]:
    """Yield the settings between commas. A comma inside brackets, or behind a backslash, divides nothing."""
    depth, part = 0, ""
    escaped = False
    for sign in text:
        if sign == "," and not depth and not escaped:
            yield part
            part = ""
            continue
        if escaped and sign == ",":
            part = part[:-1]
        depth += (sign in "{[") - (sign in "}]")
        escaped = sign == "\\" and not escaped
        part += sign
    yield part


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(entry) for key, entry in value.items() if entry is not None}
    return value
