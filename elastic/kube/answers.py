"""Reads what a server answers to lists and watches.

A server behind an API service may answer anything: what makes no sense is refused as a whole, for what is left out of it would look as if
it were not there.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp

from elastic.kube.errors import MALFORMED, KubeError, error_from_status
from elastic.kube.resources import Object

MAX_WATCH_LINE = 16 * 1024 * 1024


class WatchType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: WatchType
    object: Object


def items_of(page: Object, path: str) -> list[Object]:
    """A server leaves kind and apiVersion out of the items of a list and not out of a watch; here both are the same objects."""
    kind, items = str(page.get("kind", "")), page.get("items")
    if items is None and kind.endswith("List"):
        items = []  # Go writes an empty list so
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _malformed("a list of objects", page, path)
    named = {"apiVersion": page["apiVersion"], "kind": kind.removesuffix("List")} if kind.endswith("List") and "apiVersion" in page else {}
    return [named | item for item in items]


def event_of(event: Any, path: str) -> WatchEvent:
    """Raises what an event of type ERROR says."""
    found = event.get("object") if isinstance(event, dict) else None
    if not isinstance(found, dict) or event.get("type") not in (*WatchType, "ERROR"):
        raise _malformed("an event of a watch", event, path)
    if event["type"] == "ERROR":
        raise error_from_status(found)
    return WatchEvent(WatchType(event["type"]), found)


def _malformed(expected: str, found: object, path: str) -> KubeError:
    return KubeError(code=0, reason=MALFORMED, message=f"{path}: expected {expected}, found {str(found)[:200]}")


def text_of(metadata: object, key: str) -> str:
    """Empty where it is no text."""
    found = metadata.get(key) if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length: the stream's own line reader refuses objects above its buffer limit."""
    pending = bytearray()
    async for chunk in stream.iter_any():
        pending += chunk
        if b"\n" not in chunk:
            if len(pending) > MAX_WATCH_LINE:
                raise KubeError(code=0, reason="TooLarge", message=f"a watch event is longer than {MAX_WATCH_LINE} bytes")
            continue
        *lines, rest = pending.split(b"\n")
        pending = rest
        for line in lines:
            if line.strip():
                yield bytes(line)
