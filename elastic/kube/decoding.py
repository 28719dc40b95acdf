"""Read the JSON of an API server, at any depth.

A server stores `metadata.managedFields` of 9,000 levels, and a user who may write one pod could otherwise end every watch that shows it:
readers of JSON recurse, and give up at about 1,000 levels.
"""

import re
from typing import Any

import orjson

MOST_DEPTH = 200
"""Levels that are read; what lies deeper is null. Objects that mean something have some thirty."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{\]}]', re.DOTALL)


def decoded(data: bytes) -> Any:
    """Return the decoded JSON. Raise orjson.JSONDecodeError for anything else."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        shallow = cut(data)
        if shallow is data:
            raise
    return orjson.loads(shallow)


def cut(data: bytes) -> bytes:
    """Return the JSON with null for each value below the last level that is read; without such a value, the same object."""
    if data.count(b"{") + data.count(b"[") <= MOST_DEPTH:
        return data
    kept: list[bytes] = []
    depth, kept_to, cut_from = 0, 0, 0
    for token in _TOKEN.finditer(data):
        match token.group():
            case b"{" | b"[":
                if depth == MOST_DEPTH:
                    cut_from = token.start()
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == MOST_DEPTH:
                    kept += (data[kept_to:cut_from], b"null")
                    kept_to = token.end()
    return b"".join((*kept, data[kept_to:])) if kept else data
