"""Whether labels match a label selector: one expression of an object's, or the text of a request's. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any


def holds(entry: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether an expression holds for labels. An operator that label selectors do not have never holds."""
    value, values = labels.get(entry.get("key", "")), entry.get("values") or ()
    match entry.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


class Unreadable(ValueError):
    """The text of a selector that cannot be understood."""


_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_TERM = re.compile(rf"(?P<key>{_KEY})\s*(?:(?P<sign>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?")


def predicate(text: str) -> Callable[[Mapping[str, str]], bool]:
    """Return the predicate of a selector in the form of requests: `a=b,c in (d,e),!f`. An empty one holds for all. Raise Unreadable."""
    entries = [_entry(term.strip()) for term in re.split(r",(?![^(]*\))", text) if term.strip()]
    return lambda labels: all(holds(entry, labels) for entry in entries)


def _entry(term: str) -> Mapping[str, Any]:
    found = _TERM.fullmatch(term.removeprefix("!").strip())
    if found is None or (term.startswith("!") and (found["sign"] or found["set"])):
        raise Unreadable(f"{term!r} is no term of a selector; write key=value, key!=value, key in (a,b), key notin (a,b), key or !key")
    key = found["key"]
    if found["sign"]:
        return {"key": key, "operator": "NotIn" if found["sign"] == "!=" else "In", "values": [found["value"]]}
    if found["set"]:
        values = [value.strip() for value in found["values"].split(",")]
        return {"key": key, "operator": "In" if found["set"] == "in" else "NotIn", "values": values}
    return {"key": key, "operator": "DoesNotExist" if term.startswith("!") else "Exists"}
