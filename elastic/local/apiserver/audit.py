"""Log each user's verb on a resource once, and whether it was allowed. The log shows the rights that an account needs."""

from __future__ import annotations

from pathlib import Path

import orjson

from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json

MOST = 100_000
"""Largest number of lines. Only the number of users is unbounded, and an administrator creates them."""


class Audit:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: set[tuple[object, ...]] = set()

    def note(self, call: Call, *, allowed: bool) -> None:
        self._write(call.user.name, call.verb, call.kind.group, call.kind.plural, call.subresource, allowed)

    def used(self, user: str, right: Json, *, allowed: bool) -> None:
        """Note a right that the server checked although no request asks for it."""
        self._write(user, right["verb"], right["group"], right["resource"], right.get("subresource", ""), allowed)

    def _write(self, *fact: str | bool) -> None:
        if fact in self._seen or len(self._seen) >= MOST:
            return
        self._seen.add(fact)
        keys = ("user", "verb", "group", "resource", "subresource", "allowed")
        with self._file.open("ab") as lines:
            lines.write(orjson.dumps(dict(zip(keys, fact, strict=True))) + b"\n")
