"""Read the list of resources that the server of an API service serves.

The server may answer anything. A document with any fault is refused as a whole, with each fault named. If faulty parts were left out, they
would look as if the server did not serve them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from elastic.kube.resources import is_segment

MOST_FAULTS = 5
"""Largest number of faults that are named for a document."""


class Malformed(ValueError):
    """The document is invalid as a whole."""


class Listed(msgspec.Struct, frozen=True, rename="camel"):
    """A resource or subresource. A null value counts as unset."""

    name: str
    namespaced: bool | None = None
    kind: str | None = None
    group: str | None = None
    version: str | None = None
    singular_name: str | None = None
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None

    @property
    def parent(self) -> str:
        return self.name.partition("/")[0]

    @property
    def subresource(self) -> str:
        return self.name.partition("/")[2]


def read(body: bytes) -> tuple[Listed, ...]:
    """Return the resources of an APIResourceList. Raise Malformed if it is invalid."""
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"expected an APIResourceList, found no JSON: {error}") from error
    entries = document.get("resources") if isinstance(document, dict) else None
    if entries is None and isinstance(document, dict) and document.get("kind") == "APIResourceList":
        entries = []  # Go writes an empty list as null
    if not isinstance(entries, list):
        raise Malformed("expected an APIResourceList with a list of resources")
    found: list[Listed] = []
    faults: list[str] = []
    for number, entry in enumerate(entries):
        try:
            found.append(_one(entry))
        except ValueError as error:
            faults.append(f"resources[{number}]: {error}")
    if faults:
        more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        raise Malformed("; ".join(faults[:MOST_FAULTS]) + more)
    return tuple(found)


def _one(entry: object) -> Listed:
    listed = msgspec.convert(entry, Listed)
    if not is_segment(listed.parent):
        raise ValueError(f"name is {listed.name[:100]!r}, which cannot be a part of a path")
    return listed
