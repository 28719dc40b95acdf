"""Watch nodes: mark and taint silent ones, drive pods out of tainted ones, and delete pods of deleted nodes. nodehealth.py decides."""

import asyncio
import logging
import time

import aiohttp

from elastic.kube.cache import Cache
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import LEASES, NODES, PODS, Object
from elastic.local.agent.status import timestamp
from elastic.local.controllers.nodehealth import eviction, listening_since, silent, taints, unknown_conditions

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LOOK_AGAIN_S = 5.0
LEAST_PAUSE_S = 0.05


class NodeLifecycle:
    """Looks at all nodes and the pods on them whenever something changes, and every few seconds."""

    def __init__(self, kube: Kube, pods: "Cache[Object]", *, grace_s: float) -> None:
        self._kube = kube
        self._pods = pods
        self._grace_s = grace_s
        self._nodes: Cache[Object] = Cache(kube, NODES, project=lambda found: found)
        self._leases: Cache[Object] = Cache(kube, LEASES, project=lambda found: found, namespace=LEASE_NAMESPACE)
        self._changed = asyncio.Event()
        self._listens_since = self._looked_at = time.time()

    async def run(self) -> None:
        self._nodes.subscribe(lambda change: self._changed.set())
        self._pods.subscribe(lambda change: self._changed.set())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._leases.run())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        for cache in (self._nodes, self._leases, self._pods):
            await cache.wait_synced()
        while True:
            self._changed.clear()
            due = time.time() + LOOK_AGAIN_S
            try:
                due = await self._round()
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.warning("the nodes could not be checked, trying again: %s", error)
            try:
                async with asyncio.timeout(max(LEAST_PAUSE_S, due - time.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(LEAST_PAUSE_S)

    async def _round(self) -> float:
        now = time.time()
        self._listens_since = listening_since(self._listens_since, looked_at=self._looked_at, now=now)
        self._looked_at = now
        due = now + LOOK_AGAIN_S
        for node in self._nodes.list():
            await self._look(node, now)
            for pod in self._pods.by("node", node["metadata"]["name"]):
                leaves_at = eviction(pod, (node.get("spec") or {}).get("taints") or (), now=now).at
                if leaves_at is None or "deletionTimestamp" in pod["metadata"]:
                    continue
                if leaves_at <= now:
                    await self._drive_out(pod)
                else:
                    due = min(due, leaves_at)
        await self._clear_orphans()
        return due

    async def _look(self, node: Object, now: float) -> None:
        name = node["metadata"]["name"]
        if now - self._listens_since > self._grace_s and silent(
            node, self._leases.get(LEASE_NAMESPACE, name), now=now, grace_s=self._grace_s
        ):
            conditions = unknown_conditions(node, now=now)
            if conditions:
                log.info("node %s is silent", name)
                await self._write(name, {"status": {"conditions": conditions}}, subresource="status", kind=Patch.STRATEGIC)
        wanted = taints(node, now=now)
        if wanted is not None:
            metadata = {"resourceVersion": node["metadata"]["resourceVersion"]}
            await self._write(name, {"metadata": metadata, "spec": {"taints": wanted or None}}, subresource=None, kind=Patch.MERGE)

    async def _write(self, name: str, body: Object, *, subresource: str | None, kind: Patch) -> None:
        try:
            await self._kube.patch(NODES, name, body, kind=kind, subresource=subresource)
        except KubeError as error:
            # The node is gone or has changed meanwhile, and its watch brings us back here.
            if error.code not in (404, 409):
                raise

    async def _drive_out(self, pod: Object) -> None:
        await self._mark(pod, reason="DeletionByTaintManager", message="Taint manager: deleting due to NoExecute taint")
        await self._delete(pod, grace_s=None)

    async def _clear_orphans(self) -> None:
        """Delete pods whose node has been deleted, because no kubelet is left to end them."""
        known = {node["metadata"]["name"] for node in self._nodes.list()}
        for pod in self._pods.list():
            name = pod["spec"].get("nodeName", "")
            if not name or name in known or await self._exists(name):
                continue
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                await self._mark(pod, reason="DeletionByPodGC", message="PodGC: node no longer exists", phase="Failed")
            await self._delete(pod, grace_s=0)

    async def _exists(self, name: str) -> bool:
        return await self._kube.find(NODES, name) is not None

    async def _mark(self, pod: Object, *, reason: str, message: str, phase: str | None = None) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp(time.time()),
        }
        metadata = pod["metadata"]
        status: Object = {"conditions": [condition], **({"phase": phase} if phase else {})}
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        try:
            await self._kube.patch(
                PODS, metadata["name"], body, namespace=metadata["namespace"], kind=Patch.STRATEGIC, subresource="status"
            )
        except KubeError as error:
            if error.code not in (404, 409):
                raise

    async def _delete(self, pod: Object, *, grace_s: int | None) -> None:
        metadata = pod["metadata"]
        try:
            await self._kube.delete(PODS, metadata["name"], namespace=metadata["namespace"], grace_s=grace_s, uid=metadata["uid"])
        except KubeError as error:
            if error.code not in (404, 409):
                raise
