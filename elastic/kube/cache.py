"""Keep a local copy of a collection of the API current by list and watch, and notify subscribers of changes.

It decides nothing about the objects: a projection chooses the part of each object to keep, and indexes find them again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import aiohttp

from elastic.kube.answers import WatchEvent, WatchType
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource
from elastic.kube.view import Key, View, ViewChange, key_of, version_of

__all__ = ["Cache", "Key", "ViewChange"]
log = logging.getLogger(__name__)
T = TypeVar("T")
GONE = 410
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
SHORT_WATCH_S = 1.0


class Cache(View[T]):
    """A collection as it was a moment ago. `run` keeps it so until it is cancelled."""

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
        super().__init__(resource, project=project, indexes=indexes)
        self._kube = kube
        self._namespace, self._labels, self._fields = namespace, labels, fields

    async def run(self) -> None:
        """List and watch until cancelled. After a failure, pause and try again from the same place."""
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
            if (key := key_of(item)) is not None:
                present.add(key)
                self._put(item)
        for key in [key for key in self._entries if key not in present]:
            self._drop(key)
        self._advance(listing.resource_version)
        self._synced.set()

    def _take(self, event: WatchEvent) -> None:
        key = key_of(event.object) if event.type is not WatchType.BOOKMARK else None
        if key is not None and event.type is WatchType.DELETED:
            self._drop(key)
        elif key is not None:
            self._put(event.object)
        if key is not None or event.type is WatchType.BOOKMARK:
            self._advance(version_of(event.object))
