"""Keep the status of disruption budgets current, so that the API server can tell whether to allow an eviction.

budget.py calculates the numbers.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

import aiohttp

from elastic.api.owners import controller_of
from elastic.kube.cache import Cache, Key, ViewChange
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import POD_DISRUPTION_BUDGETS, Object
from elastic.local.controllers.budget import budget_status, counts_replicas, finished, guarded
from elastic.local.controllers.discovery import discover
from elastic.local.selectors import matches

log = logging.getLogger(__name__)

RETRY_S = 1.0
LOOK_AGAIN_S = 30.0


class DisruptionBudgets:
    """Looks at a budget when it or a pod of its namespace changes."""

    def __init__(self, kube: Kube, pods: "Cache[Object]") -> None:
        self._kube = kube
        self._pods = pods
        self._budgets: Cache[Object] = Cache(
            kube, POD_DISRUPTION_BUDGETS, project=lambda found: found, indexes={"namespace": lambda found: [found["metadata"]["namespace"]]}
        )
        self._stale: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        self._budgets.subscribe(lambda change: self._look([change.key]))
        self._pods.subscribe(self._pod_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._budgets.run())
            group.create_task(self._keep())

    def _pod_changed(self, change: ViewChange[Object]) -> None:
        namespace = change.key[0]
        self._look([(namespace, budget["metadata"]["name"]) for budget in self._budgets.by("namespace", namespace)])

    def _look(self, keys: Iterable[Key]) -> None:
        self._stale.update(keys)
        self._changed.set()

    async def _keep(self) -> None:
        await self._pods.wait_synced()
        await self._budgets.wait_synced()
        while True:
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                self._stale.update(self._budgets.keys())
            self._changed.clear()
            stale, self._stale = self._stale, set()
            for key in stale:
                try:
                    await self._refresh(key)
                except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                    log.warning("the status of disruption budget %s was not updated, trying again: %s", "/".join(key), error)
                    asyncio.get_running_loop().call_later(RETRY_S, self._look, [key])
                except Exception:
                    # An invalid budget, or another server's invalid scale, must end neither the other budgets nor the node agents.
                    log.exception("the status of disruption budget %s cannot be updated, trying again later", "/".join(key))

    async def _refresh(self, key: tuple[str, str]) -> None:
        budget = self._budgets.get(*key)
        if budget is None:
            return
        selector = budget["spec"].get("selector")
        chosen = [
            pod
            for pod in self._pods.list()
            if pod["metadata"]["namespace"] == key[0] and not finished(pod) and matches(selector, pod["metadata"].get("labels") or {})
        ]
        replicas = await self._wanted(chosen) if counts_replicas(budget) else None
        status = budget_status(budget, [guarded(pod) for pod in chosen], replicas=replicas, now=time.time())
        old = budget.get("status") or {}
        if {name: value for name, value in status.items() if value is not None} == old:
            return
        body = {"metadata": {"resourceVersion": budget["metadata"]["resourceVersion"]}, "status": status}
        try:
            await self._kube.patch(POD_DISRUPTION_BUDGETS, key[1], body, namespace=key[0], kind=Patch.MERGE, subresource="status")
        except KubeError as error:
            # A newer version of the budget will come, and bring us back here.
            if error.code not in (404, 409):
                raise

    async def _wanted(self, pods: list[Object]) -> int:
        """Return how many replicas the pods' controllers should have, by their scale. A controller without a scale counts by its pods."""
        kinds = await discover(self._kube)
        total = 0
        seen: set[str] = set()
        for pod in pods:
            owner = controller_of(pod["metadata"])
            if owner is None:
                total += 1
                continue
            resource = kinds.by_kind.get((owner.group, owner.kind))
            if owner.uid in seen:
                continue
            try:
                if resource is None:
                    raise KubeError(code=404, reason="NotFound", message=f"no kind {owner.kind}")
                scale = await self._kube.get(resource, owner.name, namespace=pod["metadata"]["namespace"], subresource="scale")
            except KubeError as error:
                if error.code not in (404, 405):
                    raise
                total += 1
                continue
            seen.add(owner.uid)
            total += int((scale.get("spec") or {}).get("replicas") or 0)
        return total
