"""Empty a namespace that is to be deleted, and let it go when nothing is left in it."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from elastic.kube.cache import Cache
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import NAMESPACES, Object
from elastic.local.agent.status import timestamp
from elastic.local.controllers.discovery import discover
from elastic.local.controllers.ownership import Item, item

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Objects that are being deleted and still exist, by kind, and the finalizers that hold them."""

    kinds: Counter[str] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)
    undiscovered: Mapping[str, str] = field(default_factory=dict)
    """Group versions whose server does not answer. They may hold content, so the namespace may not be empty."""
    problems: list[str] = field(default_factory=list)
    """Why content could not be listed or deleted."""

    @property
    def is_certain(self) -> bool:
        """Whether all content has been seen."""
        return not self.undiscovered and not self.problems


class NamespaceDeletion:
    """Runs a task for each namespace that is being deleted. It looks again until the namespace is empty."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._namespaces: Cache[Object] = Cache(kube, NAMESPACES, project=lambda found: found)
        self._going: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._namespaces.subscribe(lambda change: self._notice(group, change.new))
            group.create_task(self._namespaces.run())

    def _notice(self, group: asyncio.TaskGroup, namespace: Object | None) -> None:
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return
        name = namespace["metadata"]["name"]
        if name not in self._going and "kubernetes" in (namespace.get("spec") or {}).get("finalizers", ()):
            self._going[name] = group.create_task(self._empty(namespace))
            self._going[name].add_done_callback(lambda task: self._going.pop(name, None))

    async def _empty(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        pause = FIRST_PAUSE_S
        told = Waiting()
        while True:
            try:
                found, waiting = await self._delete_content(name)
                if not found and waiting.is_certain:
                    await self._finalize(name)
                    return
                if waiting != told and (waiting.kinds or not waiting.is_certain):
                    await self._tell(name, waiting)
                    told = waiting
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                if isinstance(error, KubeError) and error.code == 404:
                    return
                log.warning("namespace %s is not empty yet: %s", name, error)
            except Exception:
                # A namespace with invalid content must end neither the work on others nor the node agents in this process.
                log.exception("namespace %s cannot be emptied, trying again", name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _delete_content(self, name: str) -> tuple[bool, Waiting]:
        """Request the deletion of all objects. Return whether any object exists, and the objects whose deletion was requested before.

        A kind that cannot be listed or deleted does not delay other kinds.
        """
        anything = False
        kinds = await discover(self._kube)
        waiting = Waiting(undiscovered=kinds.failed)
        for resource in kinds.resources:
            if not resource.namespaced:
                continue
            try:
                items = [_of(name, item(resource, found)) for found in (await self._kube.list(resource, namespace=name)).items]
                anything = anything or bool(items)
                for found in items:
                    await self._attend(found, name, waiting)
            except (KubeError, msgspec.ValidationError) as error:
                waiting.problems.append(f"{resource.plural}.{resource.group}: {error.message if isinstance(error, KubeError) else error}")
        return anything, waiting

    async def _attend(self, found: Item, namespace: str, waiting: Waiting) -> None:
        if found.deleting:
            waiting.kinds[f"{found.resource.plural}.{found.resource.group}"] += 1
            waiting.finalizers.update(found.finalizers)
        else:
            await self._delete(found, namespace)

    async def _delete(self, found: Item, namespace: str) -> None:
        try:
            await self._kube.delete(found.resource, found.name, namespace=namespace, propagation="Background", uid=found.uid)
        except KubeError as error:
            if error.code not in (404, 405, 409):
                raise

    async def _finalize(self, name: str) -> None:
        namespace = await self._kube.get(NAMESPACES, name)
        kept = [finalizer for finalizer in namespace["spec"].get("finalizers") or () if finalizer != "kubernetes"]
        body = {**namespace, "spec": {**namespace["spec"], "finalizers": kept}}
        await self._kube.replace(NAMESPACES, body, name=name, subresource="finalize")

    async def _tell(self, name: str, waiting: Waiting) -> None:
        body = {"status": {"conditions": conditions(waiting, since=timestamp(time.time()))}}
        await self._kube.patch(NAMESPACES, name, body, kind=Patch.STRATEGIC, subresource="status")


def _of(namespace: str, found: Item) -> Item:
    """Return the object. Raise ValidationError if it is in another namespace, because then its server's list is wrong."""
    if found.namespace != namespace:
        raise msgspec.ValidationError(f"an object of the namespace {found.namespace[:100]!r} is listed in {namespace!r}")
    return found


def conditions(waiting: Waiting, *, since: str) -> list[Object]:
    """Return the conditions that say what a namespace waits for, in the words of a cluster."""
    kinds = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(waiting.kinds.items()))
    holders = ", ".join(f"{finalizer} in {count} resource instances" for finalizer, count in sorted(waiting.finalizers.items()))
    held = (True, "SomeFinalizersRemain", f"Some content in the namespace has finalizers remaining: {holders}")
    free = (False, "ContentHasNoFinalizers", "All content-preserving finalizers finished")
    stale = ", ".join(f"{version}: {why}" for version, why in waiting.undiscovered.items())
    problems = f"{len(waiting.problems)} remaining: {', '.join(sorted(waiting.problems))}"
    missing = f"{len(waiting.undiscovered)} failing: unable to retrieve the complete list of server APIs: {stale}"
    told = {
        "NamespaceDeletionDiscoveryFailure": (True, "DiscoveryFailed", f"Discovery failed for some groups, {missing}")
        if stale
        else (False, "ResourcesDiscovered", "All resources successfully discovered"),
        "NamespaceDeletionGroupVersionParsingFailure": (False, "ParsedGroupVersions", "All legacy kube types successfully parsed"),
        "NamespaceDeletionContentFailure": (True, "ContentDeletionFailed", f"Failed to delete all resource types, {problems}")
        if waiting.problems
        else (False, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        "NamespaceContentRemaining": (True, "SomeResourcesRemain", f"Some resources are remaining: {kinds}")
        if kinds
        else (False, "ContentRemoved", "All content successfully removed"),
        "NamespaceFinalizersRemaining": held if holders else free,
    }
    return [
        {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message, "lastTransitionTime": since}
        for kind, (holds, reason, message) in told.items()
    ]
