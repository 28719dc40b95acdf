"""Hold a local copy of a collection of the API, with the kept part of each object by key and by index, and its subscribers.

It does not know where the objects come from.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from elastic.kube.resources import Object, Resource

log = logging.getLogger(__name__)
Key = tuple[str, str]
"""Namespace and name; the namespace is empty for kinds that have none."""
T = TypeVar("T")
MOST_DIGITS = 18
"""Digits of a resourceVersion: etcd counts to 2^63."""


@dataclass(frozen=True, slots=True)
class ViewChange(Generic[T]):
    """The change of one key: it appeared (no old), went (no new), or changed. Also made up after a gap in the watch."""

    key: Key
    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    uid: str
    version: str
    value: T
    filed: Mapping[str, frozenset[str]]
    """By index, the values that it is found by."""


class View(Generic[T]):
    """A collection as it was a moment ago; nothing may be concluded before `synced`."""

    def __init__(
        self, resource: Resource, *, project: Callable[[Object], T], indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None
    ) -> None:
        self.resource = resource
        self._project = project
        self._entries: dict[Key, _Entry[T]] = {}
        self._indexers = dict(indexes or {})
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in self._indexers}
        self._subscribers: list[Callable[[ViewChange[T]], None]] = []
        self._version = ""
        self._synced = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._awaited: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    @property
    def synced(self) -> bool:
        """True once the first list has been taken in; it stays true, for an old view is still a whole one."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def has_reached(self, version: str) -> bool:
        """Return whether the copy is at least as new as this resourceVersion, which a write of ours may have returned."""
        return number_of(self._version) >= number_of(version)

    def when_reached(self, version: str, *, waiter: Hashable, call: Callable[[], None]) -> None:
        """Call back once when the copy is that new. A waiter waits for one version at a time, the last that it named."""
        self._awaited[waiter] = (number_of(version), call)

    def stop_waiting(self, waiter: Hashable) -> None:
        self._awaited.pop(waiter, None)

    async def reached(self, version: str, *, timeout_s: float) -> bool:
        """Wait until the copy is at least that new."""
        if self.has_reached(version):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (number_of(version), future)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
        return True

    def subscribe(self, callback: Callable[[ViewChange[T]], None]) -> None:
        """Call back for every change from now on, in order, from inside the event loop. The callback must not block."""
        self._subscribers.append(callback)

    def get(self, namespace: str, name: str) -> T | None:
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry.value

    def by(self, index: str, value: str) -> list[T]:
        """Return the objects that an index filed under this value, in the order of their keys."""
        return [self._entries[key].value for key in sorted(self._indexes[index].get(value, ()))]

    def keys(self) -> Iterable[Key]:
        return self._entries.keys()

    def _put(self, item: Object) -> None:
        key = key_of(item)
        if key is None:
            return
        old = self._entries.get(key)
        uid, version = uid_of(item), version_of(item)
        if old is not None and old.uid == uid and old.version == version:
            return
        if old is not None and old.uid != uid:
            # Deleted and created again between two lists: two objects, so two changes.
            self._drop(key)
            old = None
        try:
            value = self._project(item)
            filed = {name: frozenset(values_of(value)) for name, values_of in self._indexers.items()}
            entry = _Entry(uid, version, value, filed)
        except Exception:
            # One object, perhaps a hostile one, must not end the view of all the others.
            log.exception("an object cannot be read, and is seen as it was before", extra={"resource": self.resource.plural, "object": key})
            return
        if old is not None:
            self._unfile(key, old)
        self._entries[key] = entry
        self._file(key, entry)
        self._tell(ViewChange(key, None if old is None else old.value, entry.value))

    def _drop(self, key: Key) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._unfile(key, old)
            self._tell(ViewChange(key, old.value, None))

    def _advance(self, version: str) -> None:
        if version:
            self._version = version
        reached = number_of(self._version)
        for wanted, future in self._waiting:
            if reached >= wanted and not future.done():
                future.set_result(None)
        for waiter in [waiter for waiter, (wanted, _) in self._awaited.items() if reached >= wanted]:
            _, call = self._awaited.pop(waiter)
            call()

    def _file(self, key: Key, entry: _Entry[T]) -> None:
        for name, values in entry.filed.items():
            for found in values:
                self._indexes[name].setdefault(found, set()).add(key)

    def _unfile(self, key: Key, entry: _Entry[T]) -> None:
        for name, values in entry.filed.items():
            for found in values:
                keys = self._indexes[name][found]
                keys.discard(key)
                if not keys:
                    del self._indexes[name][found]

    def _tell(self, change: ViewChange[T]) -> None:
        for callback in self._subscribers:
            callback(change)

    # Last in the class, because from here on its name hides the built-in in annotations.
    def list(self) -> "Sequence[T]":
        return [entry.value for entry in self._entries.values()]


def key_of(item: Object) -> Key | None:
    """Return the key of an object, or None if its metadata is invalid, which no API server sends."""
    metadata = _metadata(item)
    namespace, name = metadata.get("namespace", ""), metadata.get("name")
    if isinstance(namespace, str) and isinstance(name, str):
        return namespace, name
    log.warning("an object without a readable name is passed over", extra={"uid": uid_of(item)})
    return None


def uid_of(item: Mapping[str, Any]) -> str:
    """Return the uid, or nothing if it is no text."""
    uid = _metadata(item).get("uid")
    return uid if isinstance(uid, str) else ""


def version_of(item: Object) -> str:
    """Return the version, or nothing if it is no text."""
    version = _metadata(item).get("resourceVersion")
    return version if isinstance(version, str) else ""


def _metadata(item: Any) -> Mapping[str, Any]:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def number_of(version: str) -> int:
    return int(version) if version.isdecimal() and len(version) <= MOST_DIGITS else 0
