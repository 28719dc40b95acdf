"""Read a server's answers to lists and watches.

A server behind an API service may answer anything. An invalid answer is refused as a whole, because its omitted objects would look as if
they did not exist.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp

from elastic.kube.errors import MALFORMED, KubeError, error_from_response, error_from_status
from elastic.kube.resources import Object

MAX_WATCH_LINE = 16 * 1024 * 1024
LARGEST_ANSWER = 32 * 1024 * 1024
"""Limit for one answer. A server stores objects of some MiB at most, and a list comes in pages."""
LARGEST_REFUSAL = 1024 * 1024
TOO_LARGE, REDIRECTED = "TooLarge", "Redirected"


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
    """Return the items of a list. A server leaves their kind and apiVersion out, and not in a watch; here both are the same objects."""
    kind, items = str(page.get("kind", "")), page.get("items")
    if items is None and kind.endswith("List"):
        items = []  # Go writes an empty list so
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _malformed("a list of objects", page, path)
    named = {"apiVersion": page["apiVersion"], "kind": kind.removesuffix("List")} if kind.endswith("List") and "apiVersion" in page else {}
    return [named | item for item in items]


def event_of(event: Any, path: str) -> WatchEvent:
    """Return an event of a watch; raise the error that an event of type ERROR holds."""
    found = event.get("object") if isinstance(event, dict) else None
    if not isinstance(found, dict) or event.get("type") not in (*WatchType, "ERROR"):
        raise _malformed("an event of a watch", event, path)
    if event["type"] == "ERROR":
        raise error_from_status(found)
    return WatchEvent(WatchType(event["type"]), found)


def _malformed(expected: str, found: object, path: str) -> KubeError:
    return KubeError(code=0, reason=MALFORMED, message=f"{path}: expected {expected}, found {str(found)[:200]}")


def text_of(metadata: object, key: str) -> str:
    """Return a text of the metadata; empty if it is no text."""
    found = metadata.get(key) if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


async def whole(response: aiohttp.ClientResponse, most: int, *, server: str) -> bytes:
    """Read an answer to its end, or refuse it if it is longer than `most` bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            response.close()
            raise KubeError(code=0, reason=TOO_LARGE, message=f"{server}: its answer is longer than {most} bytes; is it an API server?")
    return bytes(body)


async def refusal(response: aiohttp.ClientResponse, *, server: str) -> KubeError:
    """Return the error of an answer that is not the requested one."""
    if 300 <= response.status < 400:
        return redirected(response.status, response.headers.get("Location", ""), server=server)
    return error_from_response(response.status, await whole(response, LARGEST_REFUSAL, server=server))


def redirected(status: int, location: str, *, server: str) -> KubeError:
    """Return the error of a redirect, which is never followed: another server would get the request and be believed."""
    words = f"{server} answered {status} and sends its clients to {location[:200] or 'nowhere'}, which is not followed"
    return KubeError(code=status, reason=REDIRECTED, message=f"{words}; name the API server itself in the kubeconfig")


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of at most MAX_WATCH_LINE bytes: the stream's own reader refuses lines above its buffer limit."""
    pending = bytearray()
    async for chunk in stream.iter_any():
        pending += chunk
        if b"\n" not in chunk:
            if len(pending) > MAX_WATCH_LINE:
                raise KubeError(code=0, reason=TOO_LARGE, message=f"a watch event is longer than {MAX_WATCH_LINE} bytes")
            continue
        *lines, rest = pending.split(b"\n")
        pending = rest
        for line in lines:
            if line.strip():
                yield bytes(line)
