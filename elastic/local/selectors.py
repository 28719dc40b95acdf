"""Whether labels match a label selector as objects write it (matchLabels, matchExpressions). Pure."""

from collections.abc import Mapping
from typing import Any

from elastic.kube.labels import holds


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether the selector matches these labels. None matches nothing, and an empty selector matches everything."""
    if selector is None:
        return False
    plain = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in plain.items()) and all(
        holds(entry, labels) for entry in selector.get("matchExpressions") or ()
    )


def written(selector: Mapping[str, Any] | None) -> str:
    """Return the selector as a parameter of a request."""
    selector = selector or {}
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for entry in selector.get("matchExpressions") or ():
        key, values = entry["key"], ",".join(sorted(entry.get("values") or ()))
        forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key, "DoesNotExist": f"!{key}"}
        terms.append((key, forms[entry["operator"]]))
    return ",".join(text for _, text in sorted(terms))
