"""Whether labels match one expression of a label selector. Pure."""

from collections.abc import Mapping
from typing import Any


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
