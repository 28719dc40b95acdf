"""Writes down who asked for what, each user's verb on a resource once: what an account needs can be read there, and what it was denied."""

from __future__ import annotations

from pathlib import Path

import orjson

from elastic.local.apiserver.calls import Call

MOST = 100_000
"""Lines; only users could be without number, and they are made by an administrator."""


class Audit:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: set[tuple[object, ...]] = set()

    def note(self, call: Call, *, allowed: bool) -> None:
        fact = (call.user.name, call.verb, call.kind.group, call.kind.plural, call.subresource, allowed)
        if fact in self._seen or len(self._seen) >= MOST:
            return
        self._seen.add(fact)
        keys = ("user", "verb", "group", "resource", "subresource", "allowed")
        with self._file.open("ab") as lines:
            lines.write(orjson.dumps(dict(zip(keys, fact, strict=True))) + b"\n")
