"""Read YAML and JSON as kubectl does, and remember the line of each part.

This module knows nothing about jobs. It does not use PyYAML's own constructors, because they turn 12:30 into a number and a date into an
object, keep only the last of two equal keys, and forget the lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from elastic.api.errors import Path
from elastic.nesting import LOADER, TOO_DEEP, line_too_deep

MOST_CHARACTERS = 8_000_000
MOST_DIGITS = 400
MOST_DOUBLED = 50
"""Largest number of duplicate keys that are reported for a text. To tell its line, each has to be searched again."""
MOST_NODES = 500_000
"""Largest number of values with all aliases written out. Without it, a few lines of nested aliases could fill any memory."""

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE|yes|Yes|YES|on|On|ON)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE|no|No|NO|off|Off|OFF)\Z")
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[0-9][0-9_]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NUMBER_TO_KUBECTL = re.compile(r"(?:[-+]?[0-9]+[eE][-+]?[0-9]+|0o[0-7]+)\Z")
"""Words that PyYAML reads as text and kubectl reads as numbers."""
_NO_NUMBER = {".nan": "nan", ".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}


class Unreadable(Exception):
    """The text is neither YAML nor JSON, or it is too large to read."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """An object in a text. Each item of a List is an object too."""

    value: Any
    node: Any
    doubled: tuple[tuple[Path, str], ...]
    """Duplicate keys: the path of the mapping, and the key."""

    def line(self, at: Path) -> int:
        """Return the line of that part, or of its nearest ancestor if the part is missing."""
        return _line(self.node, at)


def documents(text: str) -> Iterator[Document]:
    """Yield every object in the text, and the items of Lists one by one. Empty documents are left out."""
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"the text has {len(text)} characters; the most is {MOST_CHARACTERS}")
    if text.lstrip()[:1] in ("{", "["):
        text = text.replace("\t", " ")  # JSON may be indented with tabs, YAML may not
    loader = LOADER(text)
    try:
        if (line := line_too_deep(text)) is not None:
            raise Unreadable(TOO_DEEP, line)
        while loader.check_node():
            node = loader.get_node()
            build = _Build()
            value = build.value(node, ())
            yield from _unpacked(Document(value, node, tuple(build.doubled)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(_words(text, error), mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise Unreadable(f"this is not YAML: {error}") from None
    finally:
        loader.dispose()


def _words(text: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "the line is indented with a tab; YAML is indented with spaces"
    return f"this is not YAML: {error.problem or error.context}"


def _unpacked(document: Document) -> Iterator[Document]:
    value = document.value
    if not isinstance(value, dict) or not str(value.get("kind", "")).endswith("List") or not isinstance(value.get("items"), list):
        if value is not None:
            yield document
        return
    for i, item in enumerate(value["items"]):
        start = ("items", i)
        doubled = tuple((at[2:], key) for at, key in document.doubled if at[:2] == start)
        yield Document(item, _child(_child(document.node, "items"), i), doubled)


class _Build:
    """Builds plain values from nodes. An aliased node is built once and counted each time."""

    def __init__(self) -> None:
        self.doubled: list[tuple[Path, str]] = []
        self._made: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()

    def value(self, node: Any, at: Path) -> Any:
        return self._sized(node, at)[0]

    def _sized(self, node: Any, at: Path) -> tuple[Any, int]:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node), 1
        if id(node) in self._made:
            return self._made[id(node)]
        if id(node) in self._open:
            raise Unreadable("an alias contains itself", node.start_mark.line + 1)
        self._open.add(id(node))
        made, size = self._sequence(node, at) if isinstance(node, yaml.SequenceNode) else self._mapping(node, at)
        self._open.discard(id(node))
        if size > MOST_NODES:
            raise Unreadable(f"there are more than {MOST_NODES} values with aliases written out", node.start_mark.line + 1)
        self._made[id(node)] = made, size
        return made, size

    def _sequence(self, node: Any, at: Path) -> tuple[Any, int]:
        items = [self._sized(item, (*at, i)) for i, item in enumerate(node.value)]
        return [item for item, _ in items], 1 + sum(size for _, size in items)

    def _mapping(self, node: Any, at: Path) -> tuple[Any, int]:
        made: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        total = 1
        for key_node, value_node in node.value:
            key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else str(key_node.tag)
            value, size = self._sized(value_node, (*at, str(key)))
            total += size
            if _is_merge(key_node):
                for part in value if isinstance(value, list) else [value]:
                    for name, item in part.items() if isinstance(part, dict) else ():
                        merged.setdefault(name, item)
                continue
            if key in made and len(self.doubled) < MOST_DOUBLED:
                self.doubled.append(((*at, str(key)), str(key)))
            made[key] = value
        return merged | made, total


def _is_merge(key_node: Any) -> bool:
    return isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<" and _is_plain(key_node)


def _scalar(node: Any) -> Any:
    """Return null, a boolean or a number for a plain word, by the rules of kubectl's YAML. Quoted text and text tagged !!str stays text."""
    text: str = node.value
    tag = node.tag.removeprefix(_TAG)
    if not _is_plain(node) or (tag == "str" and not _NUMBER_TO_KUBECTL.match(text)):
        return text
    if _NULL.match(text):
        return None
    if _TRUE.match(text) or _FALSE.match(text):
        return bool(_TRUE.match(text))
    return _number(text)


def _is_plain(node: Any) -> bool:
    """Return whether a value is neither quoted nor a block of text."""
    return node.style not in ("'", '"', "|", ">")


def _number(text: str) -> Any:
    if _INT.match(text):
        return _integer(text)
    if _FLOAT.match(text):
        return float(text)
    return float(_NO_NUMBER[text.lower()]) if text.lower() in _NO_NUMBER else text


def _integer(text: str) -> Any:
    """Read an integer, also an octal one such as 0777 or digits with _ between them, as YAML 1.1 defines."""
    bare = text.replace("_", "").lstrip("+-").lower()
    if len(bare) > MOST_DIGITS:
        return float("inf")
    sign = -1 if text.startswith("-") else 1
    try:
        return sign * (int(bare, 0) if bare.startswith(("0b", "0x", "0o")) else int(bare, 8 if bare.startswith("0") else 10))
    except ValueError:
        return text  # 089 or 0b has digits, but is no number


def _line(node: Any, at: Path) -> int:
    line = int(node.start_mark.line)
    for part in at:
        key_line, node = _key_line(node, part), _child(node, part)
        if node is None:
            break
        line = int(node.start_mark.line) if key_line is None else key_line
    return line + 1


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return node.value[part] if isinstance(part, int) and part < len(node.value) else None
    found = _pair(node, part)
    return found[1] if found else None


def _key_line(node: Any, part: str | int) -> int | None:
    found = _pair(node, part)
    return int(found[0].start_mark.line) if found else None


def _pair(node: Any, part: str | int) -> tuple[Any, Any] | None:
    """Return the last pair with this key, also from merged mappings. Each mapping is searched once, no matter how often it is merged."""
    waiting, searched = [node], set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, yaml.MappingNode) or id(node) in searched:
            continue
        searched.add(id(node))
        own = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode) and key.value == part and not _is_merge(key)]
        if own:
            return own[-1]
        merged = [value for key, value in node.value if _is_merge(key)]
        sources = [source for value in merged for source in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
        waiting.extend(reversed(sources))
    return None


def as_json(value: Any) -> str:
    """Return the value as JSON. Characters that would control a terminal or reverse its text are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
