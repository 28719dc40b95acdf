"""Look at each HorizontalPodAutoscaler every 15 s.

A look reads the facts for the decision, and carries the decision out. An autoscaler whose metrics come late delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import aiohttp

from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import HORIZONTAL_POD_AUTOSCALERS, Resource
from elastic.local.agent.events import Recorder
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.selectors import Predicate, label_selector
from elastic.local.controllers.autoscaling.asking import Asking
from elastic.local.controllers.autoscaling.decision import Decision, Scale, Seen, decide, needs_metrics, refused, rivals, without_scale
from elastic.local.controllers.autoscaling.limits import History
from elastic.local.controllers.discovery import Kinds, discover

log = logging.getLogger(__name__)

Object = dict[str, Any]
LOOK_EVERY_S = 15.0
AT_ONCE = 5
CONFLICTS = 5
MANAGER = "kube-controller-manager"
"""The field manager of a real cluster's loop. Our autoscaler would take the number of another field manager for a user's."""


class Autoscaling:
    """A task for each autoscaler, so that each keeps its own time. A few at once ask for metrics."""

    def __init__(self, kube: Kube, pods: Cache[Object], events: Recorder, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._kube, self._pods, self._events, self._look_every_s = kube, pods, events, look_every_s
        self._asking = Asking(kube)
        self._autoscalers: Cache[Object] = Cache(kube, HORIZONTAL_POD_AUTOSCALERS, project=lambda found: found)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._selectors: dict[tuple[str, str], Predicate] = {}
        """The selector of each autoscaler's target at the last look."""
        self._known, self._discovered_at = Kinds((), {}), float("-inf")
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._autoscalers.subscribe(lambda change: self._changed(group, change))
            group.create_task(self._autoscalers.run())

    def _changed(self, group: asyncio.TaskGroup, change: ViewChange[Object]) -> None:
        key = change.key
        if change.new is None:
            self._selectors.pop(key, None)
            task = self._tasks.pop(key, None)
            if task is not None:
                task.cancel()
        elif key not in self._tasks:
            self._tasks[key] = group.create_task(self._keep(key))

    async def _keep(self, key: tuple[str, str]) -> None:
        history = History()
        await self._pods.wait_synced()
        while True:
            # The real controller, too, waits for a period before its first look.
            await asyncio.sleep(self._look_every_s)
            try:
                async with self._turns:
                    history = await self._look(key, history)
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.warning("autoscaler %s was not looked at, trying again: %s", "/".join(key), error)
            except Exception:
                # An invalid object must end neither the other autoscalers nor the node agents in this process.
                log.exception("autoscaler %s cannot be looked at", "/".join(key))

    async def _look(self, key: tuple[str, str], history: History) -> History:
        hpa = self._autoscalers.get(*key)
        if hpa is None:
            return history
        kinds = await self._kinds()
        found = await self._scale(hpa, kinds)
        now = time.time()
        if isinstance(found, str):
            return await self._tell(hpa, without_scale(hpa, found, history, now=now))
        resource, obj = found
        seen = await self._seen(hpa, _scale(obj), kinds)
        decision = decide(hpa, seen, history, now=(now := time.time()))
        if decision.replicas is not None:
            problem = await self._rescale(hpa, resource, obj, decision.replicas)
            if problem:
                decision = refused(hpa, decision, seen.scale.replicas, problem, history, now=now)
        return await self._tell(hpa, decision)

    async def _kinds(self) -> Kinds:
        """Return the kinds of the API server, at most half a period old. All autoscalers share them."""
        if time.monotonic() - self._discovered_at > self._look_every_s / 2:
            self._known = await discover(self._kube)
            self._discovered_at = time.monotonic()
        return self._known

    async def _scale(self, hpa: Object, kinds: Kinds) -> tuple[Resource, Object] | str:
        """Return the resource and scale of the target, or the reason why it has no scale."""
        reference = hpa["spec"]["scaleTargetRef"]
        group = reference["apiVersion"].rpartition("/")[0]
        resource = kinds.every.get((group, reference["kind"]))
        if resource is None:
            kind = f'"{reference["kind"]}" in group "{group}"' if group else f'"{reference["kind"]}"'
            return f"no matches for kind {kind}"
        try:
            obj = await self._kube.get(resource, reference["name"], namespace=hpa["metadata"]["namespace"], subresource="scale")
        except KubeError as error:
            return error.message
        return resource, obj

    async def _seen(self, hpa: Object, scale: Scale, kinds: Kinds) -> Seen:
        if not needs_metrics(hpa, scale):
            return Seen(scale)
        namespace, key = hpa["metadata"]["namespace"], (hpa["metadata"]["namespace"], hpa["metadata"]["name"])
        try:
            matches = label_selector(scale.selector)
        except StatusError as error:
            return Seen(scale, selector_problem=error.message)
        if matches is None:
            return Seen(scale)
        self._selectors[key] = matches
        in_namespace = [p for p in self._pods.list() if p["metadata"]["namespace"] == namespace]
        pods = [p for p in in_namespace if matches(p["metadata"].get("labels") or {})]
        found = rivals(self._selectors, namespace, pods)
        if found:
            return Seen(scale, pods, rivals=found)
        asked = (
            self._asking.answer(metric, namespace=namespace, selector=scale.selector, kinds=kinds)
            for metric in hpa["spec"].get("metrics") or ()
        )
        return Seen(scale, pods, await asyncio.gather(*asked))

    async def _rescale(self, hpa: Object, resource: Resource, scale: Object, replicas: int) -> str:
        """Scale the target. Return the problem that prevented it, or an empty string."""
        name, namespace = hpa["spec"]["scaleTargetRef"]["name"], hpa["metadata"]["namespace"]
        for attempt in range(CONFLICTS):
            body = {**scale, "spec": {**(scale.get("spec") or {}), "replicas": replicas}}
            try:
                await self._kube.replace(resource, body, name=name, namespace=namespace, subresource="scale", field_manager=MANAGER)
                return ""
            except KubeError as error:
                if error.code != 409 or attempt == CONFLICTS - 1:
                    return error.message
            scale = await self._kube.get(resource, name, namespace=namespace, subresource="scale")
        raise AssertionError("the last attempt returns")

    async def _tell(self, hpa: Object, decision: Decision) -> History:
        for note in decision.notes:
            self._events.autoscaler(hpa, reason=note.reason, message=note.message, warning=note.is_warning)
        if decision.status != (hpa.get("status") or {}):
            metadata = hpa["metadata"]
            body = {
                "metadata": {"resourceVersion": metadata["resourceVersion"]},
                "status": {"lastScaleTime": None, "currentReplicas": None} | decision.status,
            }
            try:
                await self._kube.patch(
                    HORIZONTAL_POD_AUTOSCALERS,
                    metadata["name"],
                    body,
                    namespace=metadata["namespace"],
                    kind=Patch.MERGE,
                    subresource="status",
                )
            except KubeError as error:
                # The object has changed or gone meanwhile. The next look sees that.
                if error.code not in (404, 409):
                    raise
        return decision.history


def _scale(obj: Object) -> Scale:
    status = obj.get("status") or {}
    return Scale((obj.get("spec") or {}).get("replicas") or 0, status.get("replicas") or 0, status.get("selector") or "")
