"""Bind waiting pods one after the other, the most important first, and report why a pod finds no node. Other modules decide."""

import asyncio
import logging
import time

import aiohttp

from elastic.kube.cache import Cache
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.placement import Candidate, Placement, candidate, place
from elastic.kube.resources import NODES, POD_DISRUPTION_BUDGETS, PODS
from elastic.local.agent.environment import Object
from elastic.local.agent.events import Recorder
from elastic.local.agent.status import timestamp
from elastic.local.scheduler.preempt import preempt, waits_for_victims

log = logging.getLogger(__name__)

NAME = "default-scheduler"
CATCH_UP_S = 5.0
LOOK_AGAIN_S = 30.0


class Scheduler:
    """Looks whenever pods or nodes change. A bound pod counts at once, because its next version confirms the binding only later."""

    def __init__(self, kube: Kube, pods: "Cache[Object]", events: Recorder) -> None:
        self._kube = kube
        self._pods = pods
        self._nodes: Cache[Object] = Cache(kube, NODES, project=lambda node: node)
        self._events = events
        self._changed = asyncio.Event()
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        self._pods.subscribe(lambda change: self._changed.set())
        self._nodes.subscribe(lambda change: self._changed.set())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._keep_binding())

    async def _keep_binding(self) -> None:
        await self._pods.wait_synced()
        await self._nodes.wait_synced()
        while True:
            self._changed.clear()
            waiting = sorted((pod for pod in self._pods.by("node", "") if _waits(pod)), key=_order)
            self._told = {pod["metadata"]["uid"]: self._told.get(pod["metadata"]["uid"], "") for pod in waiting}
            for pod in waiting:
                try:
                    await self._schedule(pod)
                except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                    log.warning("pod %s was not bound: %s", pod["metadata"]["name"], error)
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _candidates(self) -> list[Candidate]:
        return [candidate(node, self._pods.by("node", node["metadata"]["name"])) for node in self._nodes.list()]

    async def _schedule(self, pod: Object) -> None:
        gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
        if gates:
            # The API server wrote this into the pod's status when the pod was made.
            return
        nodes = self._candidates()
        placement = place(pod, nodes)
        if placement.node is None:
            await self._refuse(pod, placement)
            if placement.full and not waits_for_victims(pod, nodes):
                await self._displace(pod, nodes)
            return
        metadata = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
        }
        try:
            await self._kube.create(PODS, body, namespace=metadata["namespace"], name=metadata["name"], subresource="binding")
        except KubeError as error:
            if error.code in (404, 409):
                return
            raise
        where = f"{metadata['namespace']}/{metadata['name']}"
        self._events.pod(pod, reason="Scheduled", message=f"Successfully assigned {where} to {placement.node}")
        await self._see_bound(metadata["namespace"], metadata["name"])

    async def _displace(self, pod: Object, nodes: list[Candidate]) -> None:
        """Delete victims with their grace period. The pod that displaces them takes the node when they have gone."""
        budgets = (await self._kube.list(POD_DISRUPTION_BUDGETS)).items
        chosen = preempt(pod, nodes, budgets)
        if chosen is None:
            return
        await self._patch_status(pod, {"nominatedNodeName": chosen.node})
        metadata = pod["metadata"]
        for victim in chosen.victims:
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": f"{NAME}: preempting to accommodate a higher priority pod",
                "lastTransitionTime": timestamp(time.time()),
            }
            await self._patch_status(victim, {"conditions": [condition]})
            where = victim["metadata"]
            message = f"Preempted by pod {metadata['uid']} on node {chosen.node}"
            self._events.pod(victim, reason="Preempted", message=message)
            await self._kube.delete(PODS, where["name"], namespace=where["namespace"], uid=where["uid"])

    async def _patch_status(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        await self._kube.patch(PODS, metadata["name"], body, namespace=metadata["namespace"], kind=Patch.STRATEGIC, subresource="status")

    async def _see_bound(self, namespace: str, name: str) -> None:
        """Wait until our own view has the binding. Otherwise the next pod would get the same room."""
        bound = await self._kube.get(PODS, name, namespace=namespace)
        await self._pods.reached(bound["metadata"]["resourceVersion"], timeout_s=CATCH_UP_S)

    async def _refuse(self, pod: Object, placement: Placement) -> None:
        metadata = pod["metadata"]
        if self._told.get(metadata["uid"]) == placement.reason:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": placement.reason,
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(time.time()),
        }
        await self._patch_status(pod, {"conditions": [condition]})
        self._events.pod(pod, reason="FailedScheduling", message=placement.reason, warning=True)
        self._told[metadata["uid"]] = placement.reason


def _waits(pod: Object) -> bool:
    status = pod.get("status") or {}
    ours = pod["spec"].get("schedulerName", NAME) == NAME
    return ours and "deletionTimestamp" not in pod["metadata"] and status.get("phase", "Pending") == "Pending"


def _order(pod: Object) -> tuple[int, str, str]:
    return (-int(pod["spec"].get("priority") or 0), pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"])
