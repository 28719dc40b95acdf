"""The pattern by which steps are found in a training program's log: literal text with {step} and {samples} for numbers and * for any text.

It is no regular expression: a line is searched once from left to right, so that no pattern and no line cost more than their length.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from elastic.api.errors import shown

FIELDS = ("step", "samples")
ANY = "*"
MARK = re.compile(r"\{([A-Za-z_]+)\}|\*")
SLIP = re.compile(
    r"\{\{(?:step|samples)\}\}|\{\s*(?:step|samples)(?:\s+\}|:[^{}\s]*\}|(?![:=}\w]))|(?<!\{)\b(?:step|samples)\}", re.IGNORECASE
)
"""Text that was probably meant as a field. Braces alone are text of many logs."""
LONGEST_NUMBER = 18
MOST_TRIES = 8
"""Largest number of places in a line at which the pattern's beginning is tried."""


@dataclass(frozen=True, slots=True)
class Part:
    """Literal text, or a field's name, or any text."""

    text: str
    is_field: bool = False

    @property
    def is_any(self) -> bool:
        return not self.is_field and self.text == ANY


def mistake(pattern: str) -> str:
    """Return the mistake in a pattern; else an empty text."""
    parts = parts_of(pattern)
    fields = [part.text for part in parts if part.is_field]
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        return f"logPattern names {{{unknown[0]}}}; it may name {{step}} and {{samples}}"
    if fields.count("step") != 1:
        return f"logPattern has {fields.count('step')} times {{step}}; write it once, where the number of the step is"
    if fields.count("samples") > 1:
        return "logPattern has {samples} more than once; write it once"
    if any(one.is_field and (other.is_field or other.is_any) for one, other in itertools.pairwise(parts)):
        return "logPattern has nothing between a number and what follows; put the text between them that the line has there"
    if parts[0].is_field or parts[0].is_any:
        return "logPattern begins with a number or *; begin with text that the line has before it"
    return ""


def remark(pattern: str) -> str:
    """Return the part of a correct pattern that will not be found as it is meant; else an empty text."""
    if "\n" in pattern or "\r" in pattern:
        return "logPattern has a line break, which no line has, so nothing matches; write the text of one line"
    if any(one.is_any and other.is_field for one, other in itertools.pairwise(parts_of(pattern))):
        return "logPattern has * directly before a number, where it stands for nothing; put the text between them that the line has there"
    if slip := SLIP.search(pattern):
        return f"logPattern has {shown(slip[0])}, which is read as text; write {{step}} or {{samples}} where the line has the number"
    return ""


def parts_of(pattern: str) -> list[Part]:
    found: list[Part] = []
    at = 0
    for mark in MARK.finditer(pattern):
        if mark.start() > at:
            found.append(Part(pattern[at : mark.start()]))
        found.append(Part(mark[1], is_field=True) if mark[1] else Part(ANY))
        at = mark.end()
    return [*found, Part(pattern[at:])] if at < len(pattern) else found


def numbers(parts: list[Part], line: str) -> dict[str, int] | None:
    """Return the numbers of a line, by field; None if it does not match."""
    begin = 0
    for _ in range(MOST_TRIES):
        begin = line.find(parts[0].text, begin)
        if begin < 0:
            return None
        found = _match(parts, line, begin)
        if found is not None:
            return found
        begin += 1
    return None


def _match(parts: list[Part], line: str, at: int) -> dict[str, int] | None:
    found: dict[str, int] = {}
    may_skip = False
    for part in parts:
        if part.is_any:
            may_skip = True
        elif part.is_field:
            end = at
            while end < len(line) and end - at <= LONGEST_NUMBER and line[end] in "0123456789":
                end += 1
            if not 0 < end - at <= LONGEST_NUMBER:
                return None
            found[part.text], at = int(line[at:end]), end
        else:
            start = line.find(part.text, at) if may_skip else at
            if start < 0 or not line.startswith(part.text, start):
                return None
            at, may_skip = start + len(part.text), False
    return found
