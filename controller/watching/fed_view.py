"""Hold the jobs of one kind, as kopf's events show them.

kopf does not say when its view is whole, nor which objects were deleted in a gap of the watch. So we list, too, each time kopf has listed.
Events and lists may come in any order; the newest form of each object counts.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.paging import Listing
from elastic.kube.resources import Object, Resource
from elastic.kube.view import Key, View, key_of, number_of, uid_of, version_of

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class FedView(View[Object]):
    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        *,
        project: Callable[[Object], Object],
        namespace: str | None,
        indexes: Mapping[str, Callable[[Object], Iterable[str]]],
    ) -> None:
        super().__init__(resource, project=project, indexes=indexes)
        self._kube = kube
        self._namespace = namespace
        self._is_list_due = asyncio.Event()
        self._is_listing, self._listed_at = False, 0
        self._gone: set[str] = set()
        """Uids that were deleted while a list was under way, which may still show them."""

    def take(self, type: str | None, item: Object) -> None:
        """Take in an event of kopf's. It has no type if it comes from a list."""
        key = key_of(item)
        if key is None:
            return
        uid, version, there = uid_of(item), number_of(version_of(item)), self._entries.get(key)
        if type == "DELETED":
            if self._is_listing:
                self._gone.add(uid)
            if there is not None and (there.uid == uid or number_of(there.version) < version):
                self._drop(key)
        elif number_of(there.version) < version if there is not None else self._listed_at < version:
            self._put(item)

    def listed(self) -> None:
        """List the objects soon. Kopf has just listed them and watches from then on, so no event is missing after our list."""
        self._is_list_due.set()

    def shows(self, key: Key, version: str) -> bool:
        """Return whether this object is at least that new in the view, or gone. Kopf keeps the order of events only within one object."""
        there = self._entries.get(key)
        return there is None or number_of(there.version) >= number_of(version)

    async def run(self) -> None:
        """List whenever it is due, until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._is_list_due.wait()
            self._is_list_due.clear()
            self._is_listing = True
            try:
                self._merge(await self._kube.list(self.resource, namespace=self._namespace))
            except KubeError as error:
                log.warning("a list failed", extra={"resource": self.resource.plural, "error": str(error)})
                self._is_list_due.set()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
            finally:
                self._is_listing = False
                self._gone.clear()

    def _merge(self, listing: Listing) -> None:
        present = set()
        for item in listing.items:
            key = key_of(item)
            if key is not None and uid_of(item) not in self._gone:
                present.add(key)
                self.take(None, item)
        # An object that is older than the list and not in it was deleted, also if kopf hands it on later.
        self._listed_at = number_of(listing.resource_version)
        for key, entry in list(self._entries.items()):
            if key not in present and number_of(entry.version) <= self._listed_at:
                self._drop(key)
        self._synced.set()
