"""Watches: a stream of changes from a version on, with selectors, bookmarks and a bounded queue per watcher."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

import orjson

from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, expired
from elastic.local.apiserver.lists import Match, encode_one, matcher
from elastic.local.apiserver.resources import ResourceType
from elastic.local.apiserver.store import Change, Entry, Store

Encode = Callable[[Entry], bytes]
QUEUE_BYTES = 16 << 20
"""what may wait for a watcher that reads slowly; beyond it the connection is cut"""
BOOKMARK_EVERY_S = 60.0


class Ended(Exception):
    """Nothing follows: the watcher does not read as fast as things change, or what it watches is no longer served."""


def line(kind: bytes, body: bytes) -> bytes:
    return b'{"type":"' + kind + b'","object":' + body + b"}\n"


def error_line(error: StatusError) -> bytes:
    return line(b"ERROR", orjson.dumps(error.status()))


class Shared:
    """The line of the latest change, made once for all who watch the same kind in its own form."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._lines: dict[tuple[bytes, str, str], bytes] = {}

    def line(self, word: bytes, entry: Entry, kind: ResourceType) -> bytes:
        if entry is not self._entry:
            self._entry, self._lines = entry, {}
        key = (word, kind.api_version, kind.kind)
        if key not in self._lines:
            self._lines[key] = line(word, encode_one(entry, kind))
        return self._lines[key]


class Watcher:
    """One watch. Changes are put into its queue as finished lines the moment they are stored."""

    def __init__(self, store: Store, call: Call, *, encode: Encode | None, shared: Shared, abort: Callable[[], None]) -> None:
        """`encode` makes another form of objects than their own."""
        self._store, self._call, self._encode, self._shared, self._abort = store, call, encode, shared, abort
        self._waiting = 0
        self._match: Match | None = matcher(call)
        self._lines: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._send: Callable[[bytes], bool] | None = None
        self._flushing = False
        self._ending = False
        self.bookmarks = call.flag("allowWatchBookmarks")
        self.revision = store.revision
        self._opening = True
        self._unsubscribe = self._begin()
        self._opening = False

    def _begin(self) -> Callable[[], None]:
        version = self._call.query.get("resourceVersion", "")
        streaming = self._call.flag("sendInitialEvents")
        initial = streaming or (version in ("", "0") and "sendInitialEvents" not in self._call.query)
        if initial:
            for entry in self._store.entries(self._call.kind.stored_in, self._call.namespace):
                if self._match is None or self._match(entry):
                    self._lines.append(self._line(b"ADDED", entry))
            if streaming and self.bookmarks:
                self._lines.append(self.bookmark(initial_end=True))
        elif version not in ("", "0"):
            past = self._store.since(self._call.kind.stored_in, int(version))
            if past is None:
                raise expired(f"too old resource version: {version} ({self._store.oldest})")
            for change in past:
                self._take(change)
        if self._lines:
            self._wake.set()
        return self._store.subscribe(self._call.kind.stored_in, self._take)

    def send_at_once(self, send: Callable[[bytes], bool]) -> None:
        """From now on what comes is handed to `send` in the same turn of the loop; what it does not take waits for next()."""
        self._send = send

    def end(self) -> None:
        """Lets the stream finish after what is queued."""
        self._ending = True
        self._wake.set()

    def close(self) -> None:
        self._unsubscribe()
        self._lines.clear()

    def _take(self, change: Change) -> None:
        self.revision = change.revision
        if self._call.namespace and change.after.namespace != self._call.namespace:
            return
        before = change.before is not None and (self._match is None or self._match(change.before))
        after = not change.gone and (self._match is None or self._match(change.after))
        if after:
            self._push(self._line(b"MODIFIED" if before else b"ADDED", change.after))
        elif before and change.before is not None:
            self._push(self._line(b"DELETED", change.after if change.gone else _restamped(change.before, change.revision)))

    def _line(self, word: bytes, entry: Entry) -> bytes:
        return self._shared.line(word, entry, self._call.kind) if self._encode is None else line(word, self._encode(entry))

    def _push(self, text: bytes) -> None:
        self._lines.append(text)
        self._waiting += len(text)
        if self._waiting > QUEUE_BYTES and not self._opening:
            self._lines.clear()
            self.end()
            self._abort()
        if self._send is None:
            self._wake.set()
        elif not self._flushing:
            # Whatever else is stored in this turn of the loop goes with it.
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._send is not None and self._lines and not self._wake.is_set() and self._send(b"".join(self._lines)):
            self._lines.clear()
            self._waiting = 0
        elif self._lines:
            self._wake.set()

    @property
    def is_behind(self) -> bool:
        return bool(self._lines)

    async def next(self, timeout_s: float) -> bytes:
        """Everything that waits to be sent, joined; empty when nothing came in time."""
        if not self._lines and not self._ending:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), timeout_s)
            except TimeoutError:
                return b""
        if self._ending and not self._lines:
            raise Ended
        sent = b"".join(self._lines)
        self._lines.clear()
        self._waiting = 0
        self._wake.clear()
        return sent

    def bookmark(self, *, initial_end: bool = False) -> bytes:
        meta: Json = {"resourceVersion": str(self._store.revision), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind = self._call.kind
        return line(b"BOOKMARK", orjson.dumps({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}))


def _restamped(entry: Entry, revision: int) -> Entry:
    """The state before an object left the selection, under the version at which it did."""
    obj = entry.load()
    obj["metadata"]["resourceVersion"] = str(revision)
    return Entry(entry.namespace, entry.name, revision, orjson.dumps(obj), entry.labels, entry.fields)


def duration_s(call: Call) -> float:
    """How long a watch lasts: as asked, else half an hour to an hour, spread so that not all end together."""
    asked = call.integer("timeoutSeconds")
    return float(asked) if asked else random.uniform(1800, 3600)
