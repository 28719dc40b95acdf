"""Whether labels match a label selector as objects write it (matchLabels, matchExpressions). Pure."""

from collections.abc import Mapping
from typing import Any


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """No selector matches nothing; an empty one matches everything."""
    if selector is None:
        return False
    plain = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in plain.items()) and all(
        holds(entry, labels) for entry in selector.get("matchExpressions") or ()
    )


def holds(entry: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One expression over labels; an operator that label selectors do not have holds nowhere."""
    value, values = labels.get(entry["key"]), entry.get("values") or ()
    match entry["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
