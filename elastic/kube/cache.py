"""Keeps a local copy of one collection of the API true by list and watch, and tells subscribers what changed.
It decides nothing about the objects: a projection says what to keep of each, indexes say how to find them again.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import aiohttp

from elastic.kube.client import Kube, WatchEvent, WatchType
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for kinds that have none."""
T = TypeVar("T")
GONE = 410
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
SHORT_WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What happened to one key: appeared (no old), went (no new), or changed; also synthesised after a gap in the watch."""

    key: Key
    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    uid: str
    version: str
    value: T


class Cache(Generic[T]):
    """A collection as it was a moment ago. `run` keeps it so until it is cancelled; nothing may be concluded before `synced`."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        *,
        project: Callable[[Object], T],
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
    ) -> None:
        self.resource = resource
        self._kube = kube
        self._project = project
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._entries: dict[Key, _Entry[T]] = {}
        self._indexers = dict(indexes or {})
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in self._indexers}
        self._subscribers: list[Callable[[Change[T]], None]] = []
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
        """Is the copy at least as new as this resourceVersion, for instance one that a write of ours returned?"""
        return not version.isdigit() or _number(self._version) >= int(version)

    def when_reached(self, version: str, *, waiter: Hashable, call: Callable[[], None]) -> None:
        """Calls back once, when the copy is that new. A waiter waits for one version at a time: the last that it named."""
        self._awaited[waiter] = (_number(version), call)

    def stop_waiting(self, waiter: Hashable) -> None:
        self._awaited.pop(waiter, None)

    async def reached(self, version: str, *, timeout_s: float) -> bool:
        """Waits until the copy is at least that new."""
        if self.has_reached(version):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (int(version), future)
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

    def subscribe(self, callback: Callable[[Change[T]], None]) -> None:
        """Calls back for every change from now on, in order, from inside the event loop; the callback must not block."""
        self._subscribers.append(callback)

    def get(self, namespace: str, name: str) -> T | None:
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry.value

    def by(self, index: str, value: str) -> list[T]:
        """The objects that an index filed under this value, in order of their keys."""
        return [self._entries[key].value for key in sorted(self._indexes[index].get(value, ()))]

    def keys(self) -> Iterable[Key]:
        return self._entries.keys()

    async def run(self) -> None:
        """Lists and watches until cancelled; any failure is followed by a pause and another try from where it stood."""
        pause = FIRST_PAUSE_S
        listed, began = False, 0.0
        while True:
            try:
                if not listed:
                    await self._relist()
                    listed = True
                began = asyncio.get_running_loop().time()
                events = self._kube.watch(
                    self.resource,
                    namespace=self._namespace,
                    labels=self._labels,
                    fields=self._fields,
                    resource_version=self._version,
                )
                async for event in events:
                    self._take(event)
                    pause = FIRST_PAUSE_S
            except KubeError as error:
                if error.code == GONE:
                    listed = False
                log.warning("a watch broke", extra={"resource": self.resource.plural, "error": str(error)})
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                log.info("a watch ended", extra={"resource": self.resource.plural, "error": repr(error)})
            else:
                if asyncio.get_running_loop().time() - began >= SHORT_WATCH_S:
                    pause = FIRST_PAUSE_S
                    continue
            # Also after a watch that ended in good order as soon as it began: a server that does so would be asked without end.
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _relist(self) -> None:
        listing = await self._kube.list(self.resource, namespace=self._namespace, labels=self._labels, fields=self._fields)
        present = set()
        for item in listing.items:
            present.add(_key(item))
            self._put(item)
        for key in [key for key in self._entries if key not in present]:
            self._drop(key)
        self._advance(listing.resource_version)
        self._synced.set()

    def _take(self, event: WatchEvent) -> None:
        match event.type:
            case WatchType.ADDED | WatchType.MODIFIED:
                self._put(event.object)
            case WatchType.DELETED:
                self._drop(_key(event.object))
            case WatchType.BOOKMARK:
                pass
        self._advance(event.object["metadata"].get("resourceVersion", ""))

    def _put(self, item: Object) -> None:
        key = _key(item)
        metadata = item["metadata"]
        old = self._entries.get(key)
        uid, version = metadata.get("uid", ""), metadata.get("resourceVersion", "")
        if old is not None and old.uid == uid and old.version == version:
            return
        if old is not None and old.uid != uid:
            # Deleted and made anew while we did not look: two objects, so two changes.
            self._drop(key)
            old = None
        entry = _Entry(uid, version, self._project(item))
        if old is not None:
            self._unfile(key, old.value)
        self._entries[key] = entry
        self._file(key, entry.value)
        self._tell(Change(key, None if old is None else old.value, entry.value))

    def _drop(self, key: Key) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._unfile(key, old.value)
            self._tell(Change(key, old.value, None))

    def _advance(self, version: str) -> None:
        if version:
            self._version = version
        reached = _number(self._version)
        for wanted, future in self._waiting:
            if reached >= wanted and not future.done():
                future.set_result(None)
        for waiter in [waiter for waiter, (wanted, _) in self._awaited.items() if reached >= wanted]:
            _, call = self._awaited.pop(waiter)
            call()

    def _file(self, key: Key, value: T) -> None:
        for name, values_of in self._indexers.items():
            for found in values_of(value):
                self._indexes[name].setdefault(found, set()).add(key)

    def _unfile(self, key: Key, value: T) -> None:
        for name, values_of in self._indexers.items():
            filed = self._indexes[name]
            for found in values_of(value):
                keys = filed.get(found)
                if keys is not None:
                    keys.discard(key)
                    if not keys:
                        del filed[found]

    def _tell(self, change: Change[T]) -> None:
        for callback in self._subscribers:
            callback(change)

    # Last in the class, because from here on its name hides the built-in in annotations.
    def list(self) -> "Sequence[T]":
        return [entry.value for entry in self._entries.values()]


def owner_uid(item: Mapping[str, Any]) -> str:
    """The uid of the controlling owner, for an index over raw objects; empty when there is none."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid", ""))
    return ""


def _key(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
