"""Parse label and field selectors, once per request, into a predicate over labels and selectable fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from elastic.local.apiserver.errors import bad_request
from elastic.local.apiserver.names import VALUE_RULE

Predicate = Callable[[Mapping[str, str]], bool]

_KEY = r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_COMPARE = re.compile(rf"^({_KEY})\s*(==|!=|=|>|<)\s*(.*)$", re.S)
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts]


def label_selector(text: str) -> Predicate | None:
    """Return a predicate over labels, or None to select everything."""
    if not text.strip():
        return None
    terms = [_label_term(part, text) for part in _split(text)]
    return lambda labels: all(term(labels) for term in terms)


def _label_term(part: str, text: str) -> Predicate:
    if m := _SET.match(part):
        key, values = m[1], {v.strip() for v in m[3].split(",")}
        for v in values:
            _check_value(v)
        if m[2] == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values if key in labels else True
    if m := _COMPARE.match(part):
        return _comparison(m[1], m[2], m[3].strip())
    if m := _EXISTS.match(part):
        key, absent = m[2], bool(m[1])
        return lambda labels: (key in labels) != absent
    word = next((w for w in part.split() if not re.fullmatch(_KEY, w)), part)
    raise bad_request(
        f"unable to parse requirement: found '{word}', expected: in, notin, =, ==, !=, gt, lt"
        if part
        else f"unable to parse requirement in {text!r}: found '', expected: identifier after ','"
    )


def _check_value(value: str) -> None:
    if not re.fullmatch(_VALUE, value) or len(value) > 63:
        word = value.split()[1] if len(value.split()) > 1 else ""
        if word:
            raise bad_request(f"found '{word}', expected: ',' or 'end of string'")
        raise bad_request(f'unable to parse requirement: values[0][]: Invalid value: "{value}": {VALUE_RULE}')


def _comparison(key: str, op: str, value: str) -> Predicate:
    _check_value(value)
    if op in ("=", "=="):
        return lambda labels: labels.get(key) == value
    if op == "!=":
        return lambda labels: labels.get(key) != value
    if not re.fullmatch(r"-?\d+", value):
        raise bad_request(f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": the value must be an integer')
    bound, above = int(value), op == ">"

    def compare(labels: Mapping[str, str]) -> bool:
        try:
            number = int(labels[key])
        except (KeyError, ValueError):
            return False
        return number > bound if above else number < bound

    return compare


FieldTerm = tuple[str, str, bool]
"""Field, value, and whether they must be equal."""


def field_terms(text: str) -> list[FieldTerm]:
    terms = []
    for part in (p for p in text.split(",") if p.strip()):
        m = re.match(r"^([^=!]+)(==|!=|=)(.*)$", part.strip())
        if not m:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        terms.append((m[1].strip(), m[3].strip(), m[2] != "!="))
    return terms


def field_selector(text: str, known: Iterable[str]) -> Predicate | None:
    """Return a predicate over selectable fields, or None to select everything."""
    terms = field_terms(text)
    names = set(known)
    for name, _, _ in terms:
        if name not in names:
            raise bad_request(f"field label not supported: {name}")
    if not terms:
        return None
    return lambda fields: all((fields.get(name, "") == value) == equal for name, value, equal in terms)
