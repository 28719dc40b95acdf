"""Make the HTTP responses in which answers are sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from aiohttp import web


def raw_response(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json"})


def json_response(
    obj: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, content_type: str = "application/json"
) -> web.Response:
    return web.Response(body=orjson.dumps(obj), status=status, headers={**(headers or {}), "Content-Type": content_type})


def not_served() -> web.Response:
    return web.Response(text="404 page not found\n", status=404, headers={"X-Content-Type-Options": "nosniff"})


MOST_WARNED = 4096
MOST_OF_ONE_WARNING = 256


def warning_headers(warnings: Iterable[str]) -> Iterator[str]:
    """Yield as many warnings as a real server sends: if they are too long together, each is cut, and the last ones are left out.

    A header must not hold control characters, but the name of a user's field may.
    """
    texts = [text for text in dict.fromkeys(warnings) if text.isprintable()]
    most = MOST_OF_ONE_WARNING if sum(map(len, texts)) > MOST_WARNED else MOST_WARNED
    left = MOST_WARNED
    for text in (text[:most] for text in texts):
        left -= len(text)
        if left < 0:
            return
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        yield f'299 - "{escaped}"'
