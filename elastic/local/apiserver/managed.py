"""Who wrote which field last (metadata.managedFields): for now only kept as given; see apply.py."""

from __future__ import annotations

from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json


def on_write(call: Call, new: Json, old: Json | None) -> None:
    if old is None:
        new["metadata"].pop("managedFields", None)


def same(new: Json, old: Json) -> bool:
    return new == old
