"""The table form of objects, which kubectl prints: columns of a kind and one row of cells per object."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from elastic.local.apiserver.errors import Json, bad_request


def column(name: str, type_: str = "string", *, format: str = "", description: str = "", priority: int = 0) -> Json:
    return {"name": name, "type": type_, "format": format, "description": description, "priority": priority}


def age(timestamp: str | None) -> str:
    """Return the time since then as kubectl writes it: 5s, 3m12s, 2h, 4d."""
    if not timestamp:
        return "<unknown>"
    then = datetime.fromisoformat(timestamp)
    return duration(int((datetime.now(UTC) - then).total_seconds()))


def duration(seconds: int) -> str:
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        return f"{hours // 24}d{hours % 24}h" if hours % 24 else f"{hours // 24}d"
    if hours < 24 * 365 * 2:
        return f"{hours // 24}d"
    if hours < 24 * 365 * 8:
        days = hours // 24
        return f"{days // 365}y{days % 365}d" if days % 365 else f"{days // 365}y"
    return f"{hours // 24 // 365}y"


def table(columns: list[Json], rows: Iterable[tuple[list[Any], Json]], *, include: str, list_meta: Json) -> Json:
    """`rows` are cells and objects; `include` is Metadata (the default), Object or None."""
    if include not in ("", "Metadata", "Object", "None"):
        why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
        raise bad_request(f"Unable to convert to Table as requested: {why}")
    out = []
    for cells, obj in rows:
        row: Json = {"cells": cells}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = partial(obj)
        else:
            row["object"] = None
        out.append(row)
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta, "columnDefinitions": columns or None, "rows": out}


def partial(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
