"""Store objects by resource, namespace and name. Every change gets the next resourceVersion and is sent to its watchers.

Each object is kept once, as the JSON bytes that answers are made of. It is written to SQLite before any client sees the change, with one
transaction per change. The journal (WAL) reaches the kernel before a write returns, so a killed process loses nothing that it acknowledged;
only a crash of the whole machine may lose the last moments. The history of changes is bounded and in memory: after a restart, or if a
reader falls behind, the reader gets an error that its version has expired, and lists again. The store knows nothing about kinds, HTTP or
rights.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from elastic.local.apiserver.errors import Json

log = logging.getLogger("elastic.local.apiserver")
MOST_BYTES = 3 << 19
JOURNALLED = 1000
"""Number of changes between two moves of the journal into the database."""
MOST_DIGITS = 20
RESERVE = 4 << 20
"""Bytes that are kept free, so that deletions can be written if the disk is full."""
Key = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""


def is_version(text: str) -> bool:
    """Return whether a text can be a resourceVersion. Python also reads other digits as numbers, and refuses very long ones."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


class Stale(Exception):
    """The object changed between reading and writing it."""


class TooLarge(Exception):
    """The object exceeds the size limit."""


class Unwritable(Exception):
    """A change could not be written to the disk. Nothing of it was stored."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A state of an object. `data` is its JSON without apiVersion and kind, which depend on the requested version."""

    namespace: str
    name: str
    revision: int
    data: bytes
    labels: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)

    def load(self) -> Json:
        obj: Json = orjson.loads(self.data)
        return obj

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object: created (without `before`), modified, or deleted (`gone`)."""

    revision: int
    resource: str
    before: Entry | None
    after: Entry
    gone: bool


Indexer = Callable[[str, Json], dict[str, str]]
Listener = Callable[[Change], None]


class Store:
    def __init__(self, path: Path, indexer: Indexer, *, history: int = 10_000, history_bytes: int = 16 << 20) -> None:
        self._indexer = indexer
        self._history: deque[Change] = deque()
        self._history_limit, self._bytes_limit, self._history_size = history, history_bytes, 0
        self._objects: dict[str, dict[Key, Entry]] = {}
        self._sorted: dict[str, list[Key]] = {}
        self._listeners: dict[str, set[Listener]] = {}
        path.touch(mode=0o600)  # it holds secrets; its journal gets the same mode
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        # The store's owner moves the journal into the database while others write; this is the fallback.
        self._db.execute("PRAGMA wal_autocheckpoint=20000")
        self._path, self._journalled = path, 0
        self._reserve = path.with_suffix(".reserve")
        self.journal_is_long: Callable[[], None] = lambda: None
        """Called when it is time to move the journal."""
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS objects(resource TEXT, namespace TEXT, name TEXT, revision INTEGER, data BLOB, "
            "PRIMARY KEY(resource, namespace, name)) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS revision(one INTEGER PRIMARY KEY CHECK(one = 1), value INTEGER)")
        self._db.execute("INSERT OR IGNORE INTO revision VALUES (1, 1)")
        self.revision = int(self._db.execute("SELECT value FROM revision").fetchone()[0])
        self.oldest = self.revision
        """Revision up to which single changes are not known any more."""
        self._fill_reserve()

    def load(self) -> Iterator[tuple[str, Entry]]:
        """Read the stored objects. Call this once, before anything else."""
        for resource, namespace, name, revision, data in self._db.execute("SELECT * FROM objects ORDER BY resource, namespace, name"):
            obj = orjson.loads(data)
            entry = self._entry(resource, namespace, name, revision=revision, obj=obj, data=data)
            self._objects.setdefault(resource, {})[entry.key] = entry
            yield resource, entry

    def close(self) -> None:
        self._db.close()

    def move_journal(self) -> None:
        """Move the journal's content into the database. This waits for the disk, and may run in another thread while others write."""
        db = sqlite3.connect(self._path)
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            db.close()
        self._fill_reserve()

    def _fill_reserve(self) -> None:
        """Reserve disk space. Without it everything works except deletions on a full disk."""
        with contextlib.suppress(OSError), open(self._reserve, "ab") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE)

    def get(self, resource: str, namespace: str, name: str) -> Entry | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def entries(self, resource: str, namespace: str = "") -> list[Entry]:
        """Return all objects of a resource, or those of one namespace, sorted by namespace and name."""
        objects = self._objects.get(resource)
        if not objects:
            return []
        keys = self._sorted.get(resource)
        if keys is None:
            keys = self._sorted[resource] = sorted(objects)
        return [objects[k] for k in keys if k[0] == namespace] if namespace else [objects[k] for k in keys]

    def resources(self) -> list[str]:
        return [r for r, objects in self._objects.items() if objects]

    def entries_at(self, resource: str, revision: int, namespace: str = "") -> list[Entry] | None:
        """Return the objects as they were at an earlier revision, or None if that is too long ago."""
        if revision < self.oldest:
            return None
        then = {e.key: e for e in self.entries(resource, namespace)}
        for change in reversed(self._history):
            if change.revision <= revision:
                break
            if change.resource != resource or (namespace and change.after.namespace != namespace):
                continue
            if change.before is None:
                then.pop(change.after.key, None)
            else:
                then[change.after.key] = change.before
        return [then[k] for k in sorted(then)]

    def put(self, resource: str, namespace: str, name: str, *, obj: Json, expected: Entry | None) -> Entry:
        """Create (if `expected` is None) or replace an object. The object gets its resourceVersion here."""
        key = (namespace, name)
        before = self._objects.get(resource, {}).get(key)
        if before is not expected:
            raise Stale(name)
        entry = self._stamp(resource, key, obj)
        if len(entry.data) > MOST_BYTES:
            raise TooLarge(f"the object has {len(entry.data)} bytes, but at most {MOST_BYTES} can be stored")
        self._commit(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)",
            (resource, namespace, name, entry.revision, entry.data),
            entry.revision,
            makes_room="deletionTimestamp" in obj["metadata"],
        )
        self._objects.setdefault(resource, {})[key] = entry
        if before is None:
            self._sorted.pop(resource, None)
        self._tell(Change(entry.revision, resource, before, entry, gone=False))
        return entry

    def remove(self, resource: str, namespace: str, name: str, *, obj: Json, expected: Entry) -> Entry:
        """Delete an object. `obj` is its last state, which watchers get."""
        key = (namespace, name)
        if self._objects.get(resource, {}).get(key) is not expected:
            raise Stale(name)
        entry = self._stamp(resource, key, obj)
        statement = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
        self._commit(statement, (resource, namespace, name), entry.revision, makes_room=True)
        del self._objects[resource][key]
        self._sorted.pop(resource, None)
        self._tell(Change(entry.revision, resource, expected, entry, gone=True))
        return entry

    def since(self, resource: str, revision: int) -> list[Change] | None:
        """Return the changes after a revision, or None if they are not known any more."""
        if revision < self.oldest:
            return None
        found = []
        for change in reversed(self._history):
            if change.revision <= revision:
                break
            if change.resource == resource:
                found.append(change)
        return found[::-1]

    def subscribe(self, resource: str, listener: Listener) -> Callable[[], None]:
        """Call the listener with every later change of the resource. Return a function that ends this."""
        listeners = self._listeners.setdefault(resource, set())
        listeners.add(listener)
        return lambda: listeners.discard(listener)

    def listeners(self) -> int:
        return sum(len(found) for found in self._listeners.values())

    def forget_history(self) -> None:
        """Forget the history, so that every reader of an earlier version must list again."""
        self._history.clear()
        self._history_size = 0
        self.oldest = self.revision

    def _stamp(self, resource: str, key: Key, obj: Json) -> Entry:
        revision = self.revision + 1
        obj["metadata"]["resourceVersion"] = str(revision)
        data = orjson.dumps({k: v for k, v in obj.items() if k not in ("apiVersion", "kind")})
        return self._entry(resource, *key, revision=revision, obj=obj, data=data)

    def _entry(self, resource: str, namespace: str, name: str, *, revision: int, obj: Json, data: bytes) -> Entry:
        labels = obj["metadata"].get("labels") or {}
        return Entry(namespace, name, revision, data, dict(labels), self._indexer(resource, obj))

    def _commit(self, statement: str, values: tuple[object, ...], revision: int, *, makes_room: bool) -> None:
        try:
            self._write(statement, values, revision)
        except sqlite3.OperationalError as error:
            if not makes_room or not self._reserve.exists():
                raise Unwritable(f"{self._path}: {error}") from error
            self._reserve.unlink()
            log.warning("%s: %s; deletions use the reserve", self._path, error)
            try:
                self._write(statement, values, revision)
            except sqlite3.OperationalError as again:
                raise Unwritable(f"{self._path}: {again}") from again
        self.revision = revision
        self._journalled += 1
        if self._journalled % JOURNALLED == 0:
            self.journal_is_long()

    def _write(self, statement: str, values: tuple[object, ...], revision: int) -> None:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute(statement, values)
            db.execute("UPDATE revision SET value = ?", (revision,))
            db.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself if the disk is full.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _tell(self, change: Change) -> None:
        self._history.append(change)
        self._history_size += len(change.after.data)
        while len(self._history) > self._history_limit or (self._history_size > self._bytes_limit and len(self._history) > 1):
            old = self._history.popleft()
            self._history_size -= len(old.after.data)
            self.oldest = old.revision
        for listener in tuple(self._listeners.get(change.resource, ())):
            listener(change)
