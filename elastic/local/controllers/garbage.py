"""Collect garbage: objects whose owners have gone, and dependents that a deleted owner waits for.

ownership.py decides what to do with an object. The server of an API service is believed about its own objects only, because it may write
any uids and owners. An object is therefore known by its place, and a reference means an object only if all its fields fit.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable

import aiohttp

from elastic.api.owners import Owner
from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS, Object, Resource
from elastic.local.controllers.discovery import Kinds, discover
from elastic.local.controllers.ownership import (
    FOREGROUND,
    Action,
    Delete,
    DeleteDependents,
    Disown,
    Item,
    Key,
    OrphanDependents,
    Release,
    State,
    item,
    judge,
)

log = logging.getLogger(__name__)

RETRY_S = 1.0
GATHER_S = 0.1
LOOK_AGAIN_S = 30.0
"""Seconds between two discoveries, because no object shows that the server of an API service serves other kinds than before."""


class GarbageCollector:
    """Watches every kind, also new ones, and looks at an object whenever it, its owner or its dependent changes."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._definitions: Cache[str] = Cache(kube, CUSTOM_RESOURCE_DEFINITIONS, project=_established)
        self._services: Cache[Object] = Cache(kube, API_SERVICES, project=lambda found: found.get("status") or {})
        self._kinds = Kinds((), {})
        self._watches: dict[Resource, tuple[Cache[Item], asyncio.Task[None]]] = {}
        self._items: dict[Key, Item] = {}
        self._naming: dict[str, set[Key]] = {}
        """The objects that have an owner reference with a uid, by that uid."""
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._rediscover = asyncio.Event()

    async def run(self) -> None:
        for definitions in (self._definitions, self._services):
            definitions.subscribe(lambda change: self._rediscover.set())
        self._rediscover.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._definitions.run())
            group.create_task(self._services.run())
            group.create_task(self._keep_watching(group))
            group.create_task(self._collect())

    async def _keep_watching(self, group: asyncio.TaskGroup) -> None:
        await self._definitions.wait_synced()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._rediscover.wait()
            await asyncio.sleep(GATHER_S)
            self._rediscover.clear()
            before = self._kinds.failed
            try:
                self._kinds = await discover(self._kube)
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.warning("the API's kinds could not be listed, trying again: %s", error)
                await asyncio.sleep(RETRY_S)
                self._rediscover.set()
                continue
            if self._kinds.failed and self._kinds.failed != before:
                log.warning("the resources of these group versions are not known: %s", self._kinds.failed)
            silent = {resource for resource in self._watches if resource.api_version in self._kinds.failed}
            self._follow(group, set(self._kinds.resources) | silent)

    def _follow(self, group: asyncio.TaskGroup, wanted: set[Resource]) -> None:
        for resource in wanted - self._watches.keys():
            cache: Cache[Item] = Cache(self._kube, resource, project=lambda found, resource=resource: item(resource, found))  # type: ignore[misc]
            cache.subscribe(self._changed)
            self._watches[resource] = (cache, group.create_task(cache.run()))
        for resource in self._watches.keys() - wanted:
            cache, task = self._watches.pop(resource)
            task.cancel()
            for gone in cache.list():
                self._forget(gone)

    def _changed(self, change: ViewChange[Item]) -> None:
        if change.old is not None:
            self._forget(change.old)
        if change.new is not None:
            self._items[change.new.key] = change.new
            for owner in change.new.owners:
                self._naming.setdefault(owner.uid, set()).add(change.new.key)
            if change.new.owners or change.new.deleting:
                self._enqueue([change.new.key])

    def _forget(self, gone: Item) -> None:
        self._items.pop(gone.key, None)
        for owner in gone.owners:
            siblings = self._naming.get(owner.uid, set())
            siblings.discard(gone.key)
            if not siblings:
                self._naming.pop(owner.uid, None)
        self._enqueue([*self._naming.get(gone.uid, ()), *(found.key for owner in gone.owners if (found := self._known(gone, owner)))])

    def _known(self, subject: Item, owner: Owner) -> Item | None:
        """Return the owner that the subject's reference means, if a watch has shown it."""
        resource = self._kinds.by_kind.get((owner.group, owner.kind)) or next(
            (watched for watched in self._watches if (watched.group, watched.kind) == (owner.group, owner.kind)), None
        )
        if resource is None:
            return None
        found = self._items.get((resource, subject.namespace if resource.namespaced else "", owner.name))
        return found if found is not None and found.uid == owner.uid else None

    def _enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key not in self._queued:
                self._queued.add(key)
                self._queue.put_nowait(key)

    async def _collect(self) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            subject = self._items.get(key)
            if subject is None:
                continue
            where = f"{subject.resource.plural} {subject.namespace}/{subject.name}"
            try:
                await self._attend(subject)
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                if isinstance(error, KubeError) and error.code == 404:
                    continue
                log.warning("garbage collection of %s failed, trying again: %r", where, error)
                asyncio.get_running_loop().call_later(RETRY_S, self._enqueue, [key])
            except Exception:
                # An invalid object must end neither the collection nor the node agents in this process. Its next change, or its owner's,
                # brings it here again.
                log.exception("garbage collection of %s is not possible", where)

    async def _attend(self, subject: Item) -> None:
        states = {owner: await self._state(subject, owner) for owner in subject.owners} if not subject.deleting else {}
        naming = (self._items[key] for key in self._naming.get(subject.uid, ()) if key in self._items)
        dependents = tuple(other for other in naming if subject.owns(other))
        action = judge(subject, states, dependents)
        if action is not None:
            await self._act(subject, dependents, action)

    async def _state(self, subject: Item, owner: Owner) -> State:
        """Return the state of an owner. An owner that no watch has shown may be new, so ask the server before calling it absent."""
        known = self._known(subject, owner)
        if known is None:
            resource = self._kinds.by_kind.get((owner.group, owner.kind))
            if resource is None or (resource.namespaced and not subject.namespace):
                # Leave the object alone if we cannot ask for its owner: its kind is unknown, and perhaps new, or the owner has a
                # namespace although the object has none.
                return State.PRESENT
            namespace = subject.namespace if resource.namespaced else None
            try:
                found = await self._kube.get(resource, owner.name, namespace=namespace)
            except KubeError as error:
                if error.code != 404:
                    raise
                return State.ABSENT
            if found["metadata"]["uid"] != owner.uid:
                return State.ABSENT
            known = item(resource, found)
        return State.WAITING if known.deleting and FOREGROUND in known.finalizers else State.PRESENT

    async def _act(self, subject: Item, dependents: tuple[Item, ...], action: Action) -> None:
        match action:
            case Delete(propagation):
                await self._delete(subject, propagation)
            case Disown(uids):
                await self._disown(subject, set(uids))
            case Release(finalizer):
                await self._release(subject, finalizer)
            case DeleteDependents():
                self._enqueue(other.key for other in dependents if not other.deleting)
            case OrphanDependents():
                for other in dependents:
                    await self._disown(other, {subject.uid})
                self._enqueue([subject.key])

    async def _delete(self, subject: Item, propagation: str) -> None:
        namespace = subject.namespace or None
        try:
            await self._kube.delete(subject.resource, subject.name, namespace=namespace, propagation=propagation, uid=subject.uid)
        except KubeError as error:
            if error.code not in (404, 409):
                raise

    async def _disown(self, subject: Item, uids: set[str]) -> None:
        found = await self._get(subject)
        if found is None:
            return
        kept = [reference for reference in found["metadata"].get("ownerReferences") or () if reference["uid"] not in uids]
        await self._patch(subject, found, {"ownerReferences": kept or None})

    async def _release(self, subject: Item, finalizer: str) -> None:
        found = await self._get(subject)
        if found is None:
            return
        kept = [name for name in found["metadata"].get("finalizers") or () if name != finalizer]
        await self._patch(subject, found, {"finalizers": kept or None})

    async def _get(self, subject: Item) -> Object | None:
        found = await self._kube.get(subject.resource, subject.name, namespace=subject.namespace or None)
        return found if found["metadata"]["uid"] == subject.uid else None

    async def _patch(self, subject: Item, found: Object, metadata: Object) -> None:
        body = {"metadata": {**metadata, "uid": subject.uid, "resourceVersion": found["metadata"]["resourceVersion"]}}
        await self._kube.patch(subject.resource, subject.name, body, namespace=subject.namespace or None, kind=Patch.MERGE)


def _established(definition: Object) -> str:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    served = [version["name"] for version in definition["spec"]["versions"] if version.get("served")]
    return f"{served} {[entry['type'] for entry in conditions if entry['status'] == 'True']}"
