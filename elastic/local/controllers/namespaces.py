"""Empties a namespace that is to be deleted, and lets it go when nothing is left in it."""

import asyncio
import logging
import time

import aiohttp

from elastic.kube.cache import Cache
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import NAMESPACES, Object, Resource
from elastic.local.agent.status import timestamp
from elastic.local.controllers.discovery import discover

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class NamespaceDeletion:
    """One task per namespace that is going; each looks again until the namespace is empty."""

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
        told: dict[str, int] = {}
        while True:
            try:
                left = await self._delete_content(name)
                if not left:
                    await self._finalize(name)
                    return
                if left != told:
                    await self._tell(name, left)
                    told = left
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                if isinstance(error, KubeError) and error.code == 404:
                    return
                log.warning("namespace %s is not empty yet: %s", name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _delete_content(self, name: str) -> dict[str, int]:
        """Asks for the deletion of everything that is not going yet; returns what is left, by kind."""
        left = {}
        kinds = await discover(self._kube)
        for resource in kinds.resources:
            if not resource.namespaced:
                continue
            items = (await self._kube.list(resource, namespace=name)).items
            if items:
                left[f"{resource.plural}.{resource.group}".rstrip(".")] = len(items)
            for found in items:
                if "deletionTimestamp" not in found["metadata"]:
                    await self._delete(resource, name, found)
        return left

    async def _delete(self, resource: Resource, namespace: str, found: Object) -> None:
        metadata = found["metadata"]
        try:
            await self._kube.delete(resource, metadata["name"], namespace=namespace, propagation="Background", uid=metadata["uid"])
        except KubeError as error:
            if error.code not in (404, 405, 409):
                raise

    async def _finalize(self, name: str) -> None:
        namespace = await self._kube.get(NAMESPACES, name)
        kept = [finalizer for finalizer in namespace["spec"].get("finalizers") or () if finalizer != "kubernetes"]
        body = {**namespace, "spec": {**namespace["spec"], "finalizers": kept}}
        await self._kube.replace(NAMESPACES, body, name=name, subresource="finalize")

    async def _tell(self, name: str, left: dict[str, int]) -> None:
        words = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(left.items()))
        since = timestamp(time.time())
        conditions = [
            _condition("NamespaceDeletionDiscoveryFailure", False, "ResourcesDiscovered", "All resources successfully discovered", since),
            _condition(
                "NamespaceDeletionContentFailure",
                False,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
                since,
            ),
            _condition("NamespaceContentRemaining", True, "SomeResourcesRemain", f"Some resources are remaining: {words}", since),
        ]
        await self._kube.patch(NAMESPACES, name, {"status": {"conditions": conditions}}, kind=Patch.STRATEGIC, subresource="status")


def _condition(kind: str, holds: bool, reason: str, message: str, since: str) -> Object:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message, "lastTransitionTime": since}
