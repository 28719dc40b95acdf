"""Stream changes since a version to watchers, with selectors and bookmarks. Queues for slow readers are bounded."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator

import orjson

from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, expired
from elastic.local.apiserver.lists import Match, encode_one, matcher
from elastic.local.apiserver.resources import ResourceType
from elastic.local.apiserver.store import Change, Entry, Store

Encode = Callable[[Entry], bytes]
QUEUE_BYTES = 16 << 20
"""Largest queue of a watcher that reads slowly. Above it, its connection is cut."""
ALL_QUEUES_BYTES = 64 << 20
"""Largest sum of all watchers' queues. Above it, the watcher with the longest queue is closed."""
LONGEST_WATCH_S = 3600.0
SENT_AT_ONCE = 64 << 10
"""Bytes that are prepared for a watcher at a time, approximately."""


class Ended(Exception):
    """The stream ends: the watcher reads too slowly, or its resource is not served any more."""


def line(kind: bytes, body: bytes) -> bytes:
    return b'{"type":"' + kind + b'","object":' + body + b"}\n"


def error_line(error: StatusError) -> bytes:
    return line(b"ERROR", orjson.dumps(error.status()))


class Shared:
    """State that all watchers share.

    It has the line of the latest change, which is made once for all watches of a kind in its own form, and the sum of the queues. A line in
    several queues is in memory once, and counts once.
    """

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._lines: dict[tuple[bytes, str, str], bytes] = {}
        self._waited_for: dict[int, int] = {}
        self._behind: dict[Watcher, None] = {}
        self.waiting = 0

    def line(self, word: bytes, entry: Entry, kind: ResourceType) -> bytes:
        if entry is not self._entry:
            self._entry, self._lines = entry, {}
        key = (word, kind.api_version, kind.kind)
        if key not in self._lines:
            self._lines[key] = line(word, encode_one(entry, kind))
        return self._lines[key]

    def waits(self, watcher: Watcher, text: bytes) -> None:
        self._behind[watcher] = None
        watchers = self._waited_for.get(id(text), 0)
        self._waited_for[id(text)] = watchers + 1
        self.waiting += 0 if watchers else len(text)
        while self.waiting > ALL_QUEUES_BYTES:
            max(self._behind, key=lambda w: w.waiting).cut()

    def waits_no_more(self, watcher: Watcher, text: bytes) -> None:
        watchers = self._waited_for.pop(id(text))
        if watchers > 1:
            self._waited_for[id(text)] = watchers - 1
        else:
            self.waiting -= len(text)
        if not watcher.waiting:
            self._behind.pop(watcher, None)


class Watcher:
    """A watch. Changes are put into its queue as finished lines at the moment at which they are stored."""

    def __init__(self, store: Store, call: Call, *, encode: Encode | None, shared: Shared, abort: Callable[[], None]) -> None:
        """Begin a watch. `encode` makes another form of objects than their own."""
        self._store, self._call, self._encode, self._shared, self._abort = store, call, encode, shared, abort
        self.waiting = 0
        """Number of bytes in the queue."""
        self._match: Match | None = matcher(call)
        self._lines: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._send: Callable[[bytes], bool] | None = None
        self._flushing = False
        self._sending = False
        self._ending = self._is_cut = False
        self.bookmarks = call.flag("allowWatchBookmarks")
        self.revision = store.revision
        self._opening: Iterator[bytes] | None = self._begin()
        self._unsubscribe = store.subscribe(call.kind.stored_in, self._take)

    def _begin(self) -> Iterator[bytes] | None:
        """Return the lines before all later changes. Each is made when it is sent, because a list may be long and its reader slow."""
        version = self._call.query.get("resourceVersion", "")
        streaming = self._call.flag("sendInitialEvents")
        if streaming or (version in ("", "0") and "sendInitialEvents" not in self._call.query):
            entries = self._store.entries(self._call.kind.stored_in, self._call.namespace)
            return self._present(entries, self.bookmark(initial_end=True) if streaming and self.bookmarks else b"")
        if version in ("", "0"):
            return None
        past = self._store.since(self._call.kind.stored_in, int(version))
        if past is None:
            raise expired(f"too old resource version: {version} ({self._store.oldest})")
        return filter(None, map(self._text, past)) if past else None

    def _present(self, entries: list[Entry], last: bytes) -> Iterator[bytes]:
        for entry in entries:
            if self._match is None or self._match(entry):
                yield self._line(b"ADDED", entry)
        if last:
            yield last

    def send_at_once(self, send: Callable[[bytes], bool]) -> None:
        """Hand later lines to `send` in the same turn of the event loop. Lines that it does not take wait for next()."""
        self._send = send

    def end(self) -> None:
        """End the stream after the queued lines."""
        self._ending = True
        self._wake.set()

    def cut(self) -> None:
        """Drop the queue and the connection. The client lists again."""
        self._is_cut = True
        self._forget()
        self.end()
        self._abort()

    def close(self) -> None:
        self._unsubscribe()
        self._forget()

    def _forget(self) -> None:
        self._opening = None
        while self._lines:
            self._next_line()

    def _take(self, change: Change) -> None:
        self.revision = change.revision
        text = self._text(change)
        if text and not self._is_cut:
            self._push(text)

    def _text(self, change: Change) -> bytes:
        """Return the line about a change, or nothing if the watcher does not see the change."""
        if self._call.namespace and change.after.namespace != self._call.namespace:
            return b""
        before = change.before is not None and (self._match is None or self._match(change.before))
        after = not change.gone and (self._match is None or self._match(change.after))
        if after:
            return self._line(b"MODIFIED" if before else b"ADDED", change.after)
        if before and change.before is not None:
            return self._line(b"DELETED", change.after if change.gone else _restamped(change.before, change.revision))
        return b""

    def _line(self, word: bytes, entry: Entry) -> bytes:
        return self._shared.line(word, entry, self._call.kind) if self._encode is None else line(word, self._encode(entry))

    def _push(self, text: bytes) -> None:
        self._lines.append(text)
        self.waiting += len(text)
        self._shared.waits(self, text)
        if self.waiting > QUEUE_BYTES:
            self.cut()
        if self._send is None:
            self._wake.set()
        elif not self._flushing:
            # Other changes that are stored in this turn of the loop are sent together with it.
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        is_idle = self._opening is None and not self._sending and not self._wake.is_set()
        if is_idle and self._lines and self._send is not None and self.waiting <= SENT_AT_ONCE and self._send(b"".join(self._lines)):
            self._forget()
        elif self._lines:
            self._wake.set()

    @property
    def is_behind(self) -> bool:
        return bool(self._lines) or self._opening is not None

    async def next(self, timeout_s: float) -> bytes:
        """Return the next lines to send, up to about SENT_AT_ONCE bytes; empty if none came in time.

        Until the next call, no line is sent in another way.
        """
        self._sending = False
        if not self._lines and self._opening is None and not self._ending:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), timeout_s)
            except TimeoutError:
                return b""
        found, size = [], 0
        while size < SENT_AT_ONCE and (text := self._next_line()):
            found.append(text)
            size += len(text)
        if self._ending and not found:
            raise Ended
        self._wake.clear()
        self._sending = bool(found)
        return b"".join(found)

    def _next_line(self) -> bytes:
        if self._opening is not None:
            if text := next(self._opening, b""):
                return text
            self._opening = None
        if not self._lines:
            return b""
        text = self._lines.popleft()
        self.waiting -= len(text)
        self._shared.waits_no_more(self, text)
        return text

    def bookmark(self, *, initial_end: bool = False) -> bytes:
        meta: Json = {"resourceVersion": str(self._store.revision), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind = self._call.kind
        return line(b"BOOKMARK", orjson.dumps({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}))


def _restamped(entry: Entry, revision: int) -> Entry:
    """Return the state of an object before it left the selection, with the version at which it left."""
    obj = entry.load()
    obj["metadata"]["resourceVersion"] = str(revision)
    return Entry(entry.namespace, entry.name, revision, orjson.dumps(obj), entry.labels, entry.fields)


def duration_s(call: Call) -> float:
    """Return the seconds of a watch: as asked, or half an hour to an hour, at random so that not all end together."""
    asked = call.integer("timeoutSeconds")
    return float(asked) if asked else random.uniform(LONGEST_WATCH_S / 2, LONGEST_WATCH_S)
