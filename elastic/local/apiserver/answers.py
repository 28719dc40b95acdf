"""The forms in which the HTTP edge puts its answers."""

from __future__ import annotations

from collections.abc import Mapping
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
