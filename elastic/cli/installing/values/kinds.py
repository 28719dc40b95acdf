"""Types of values: each one checks what a user gave, says what to give instead, and describes itself as JSON schema. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LONGEST_FOUND = 60
QUANTITY = r"^[0-9]+(\.[0-9]+)?([eE][0-9]+|m|k|Ki|[MGTPE]i?)?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
NAME = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"
Schema = dict[str, Any]


class Kind(Protocol):
    """The type of a value."""

    def problems(self, path: str, found: Any) -> Iterator[str]:
        """Yield what is wrong with a value, with its path, what was found and what to give."""
        ...

    def schema(self) -> Schema: ...

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        """Return the value that `--set` means by this text. `rest` is the part of its path below this value."""
        ...


def wrong(path: str, found: Any, advice: str) -> str:
    """Return one problem in words."""
    text = json.dumps(found, ensure_ascii=False, default=str)
    short = text if len(text) <= LONGEST_FOUND else f"{text[:LONGEST_FOUND]}..."
    return f"{path}: {short}: {advice}"


def unknown(path: str, name: str, known: Iterable[str]) -> str:
    """Return that a name is unknown, with the nearest one."""
    names = list(known)
    full = f"{path}.{name}" if path else name
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"{full}: there is no such value; did you mean {f'{path}.' if path else ''}{near[0]}?"
    return f"{full}: there is no such value; {path or 'values'} may have {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Switch:
    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, bool):
            yield wrong(path, found, "give true or false")

    def schema(self) -> Schema:
        return {"type": "boolean"}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return {"true": True, "false": False}.get(text, text)


@dataclass(frozen=True, slots=True)
class Whole:
    least: int
    most: int

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if isinstance(found, bool) or not isinstance(found, int) or not self.least <= found <= self.most:
            yield wrong(path, found, f"give a whole number from {self.least} to {self.most}")

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return int(text) if re.fullmatch(r"-?\d{1,9}", text) else text


@dataclass(frozen=True, slots=True)
class Word:
    choices: tuple[str, ...]

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if found not in self.choices or not isinstance(found, str):
            yield wrong(path, found, f"give one of {', '.join(json.dumps(one) for one in self.choices)}")

    def schema(self) -> Schema:
        return {"enum": list(self.choices)}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return text


@dataclass(frozen=True, slots=True)
class Text:
    """A string of this form."""

    pattern: str
    advice: str

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, str) or not re.search(self.pattern, found):
            yield wrong(path, found, self.advice)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": self.pattern}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return text


@dataclass(frozen=True, slots=True)
class Texts:
    """A map of strings, such as labels. The control plane needs some keys for itself."""

    pattern: str = ""
    taken: tuple[str, ...] = ()

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, dict):
            yield wrong(path, found, "give a map of strings, such as {team: research}")
            return
        for key, value in found.items():
            if key in self.taken:
                yield f"{path}.{key}: the control plane sets this label itself; give another one"
            elif not isinstance(key, str) or not re.search(LABEL_KEY, key):
                yield wrong(path, key, "this is no name of a label or annotation; give one such as example.com/team")
            elif value is not None and not isinstance(value, str):
                yield wrong(
                    f"{path}.{key}", value, f"give a string: {json.dumps(json.dumps(value) if isinstance(value, bool) else str(value))}"
                )
            elif value is not None and not re.search(self.pattern, value):
                yield wrong(f"{path}.{key}", value, "give at most 63 letters, digits, '-', '_' and '.'")

    def schema(self) -> Schema:
        names: Schema = {"pattern": LABEL_KEY} | ({"not": {"enum": list(self.taken)}} if self.taken else {})
        more: Schema = {"type": "string"} | ({"pattern": self.pattern} if self.pattern else {})
        return {"type": "object", "propertyNames": names, "additionalProperties": more}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return text if rest else flow(text)


@dataclass(frozen=True, slots=True)
class Flags:
    """A list of flags for a program."""

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, list):
            yield wrong(path, found, 'give a list of flags, such as ["--lease-duration=30"]')
            return
        for at, flag in enumerate(found):
            if not isinstance(flag, str) or not flag.startswith("-"):
                yield wrong(f"{path}[{at}]", flag, 'give a flag with its value, such as "--lease-duration=30"')

    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "string", "pattern": "^-"}}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return flow(text)


@dataclass(frozen=True, slots=True)
class Objects:
    """A list of objects with these fields."""

    fields: tuple[str, ...]
    needed: str
    example: str

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, list):
            yield wrong(path, found, f"give a list, such as {self.example}")
            return
        for at, item in enumerate(found):
            if not isinstance(item, dict) or (self.needed and self.needed not in item):
                yield wrong(f"{path}[{at}]", item, f"give an object, such as {self.example[1:-1]}")
                continue
            for name in item:
                if name not in self.fields:
                    yield unknown(f"{path}[{at}]", str(name), self.fields)

    def schema(self) -> Schema:
        item: Schema = {"type": "object", "properties": {name: {} for name in self.fields}, "additionalProperties": False}
        return {"type": "array", "items": item | ({"required": [self.needed]} if self.needed else {})}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return flow(text)


@dataclass(frozen=True, slots=True)
class Resources:
    """Requests and limits of a container."""

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, dict):
            yield wrong(path, found, "give requests and limits, such as {requests: {cpu: 100m, memory: 192Mi}}")
            return
        for name, amounts in found.items():
            if name not in ("requests", "limits"):
                yield unknown(path, str(name), ("requests", "limits"))
            elif amounts is not None and not isinstance(amounts, dict):
                yield wrong(f"{path}.{name}", amounts, "give amounts by resource, such as {cpu: 100m, memory: 192Mi}")
            else:
                for resource, amount in (amounts or {}).items():
                    if amount is not None and (isinstance(amount, bool) or not re.search(QUANTITY, str(amount))):
                        yield wrong(f"{path}.{name}.{resource}", amount, "give an amount, such as 100m, 2 or 512Mi")

    def schema(self) -> Schema:
        amounts = {"type": "object", "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": QUANTITY}]}}
        return {"type": "object", "properties": {"requests": amounts, "limits": amounts}, "additionalProperties": False}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return text if len(rest) == 2 else flow(text)


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of Kubernetes of which only the first names are checked here; the API server checks the others."""

    names: tuple[str, ...]

    def problems(self, path: str, found: Any) -> Iterator[str]:
        if not isinstance(found, dict):
            yield wrong(path, found, f"give an object with {', '.join(self.names)}")
            return
        for name in found:
            if name not in self.names:
                yield unknown(path, str(name), self.names)

    def schema(self) -> Schema:
        return {"type": "object", "properties": {name: {"type": "object"} for name in self.names}, "additionalProperties": False}

    def typed(self, text: str, rest: Sequence[str]) -> Any:
        return flow(text)


def flow(text: str) -> Any:
    """Return a list or map that `--set` gives: Helm's {a,b}, or YAML such as [a, b] and {a: b}."""
    import yaml

    if re.fullmatch(r"\{[^:{}\[\]]+\}", text):
        return [part.strip() for part in text[1:-1].split(",")]
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
