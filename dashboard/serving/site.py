"""Serve the pages, which are files of this package and are read once. They contain no secrets, and all callers get the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "": "text/plain"}


@dataclass(frozen=True, slots=True)
class File:
    body: bytes
    type: str
    tag: str

    def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == self.tag:
            return web.Response(status=304, headers={"ETag": self.tag})
        return web.Response(body=self.body, content_type=self.type, charset="utf-8", headers={"ETag": self.tag})


def pages() -> dict[str, File]:
    """Return the files by the path that a browser asks for."""
    found = dict(_walk(files("elastic_training.dashboard") / "pages", "/"))
    return found | {"/": found["/index.html"]}


def _walk(folder: Traversable, path: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _walk(item, f"{path}{item.name}/")
            continue
        type = TYPES.get(item.name.rpartition(".")[2] if "." in item.name else "")
        if type is not None:
            body = item.read_bytes()
            found.append((path + item.name, File(body, type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')))
    return found
