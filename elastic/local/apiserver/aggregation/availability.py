"""Keep the condition Available of API services and their discovery documents up to date.

Each server is asked for its resources every half minute, and when its API service, its service or the pods and slices behind it change. A
server that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiohttp

from elastic.local.apiserver.aggregation.apiservices import STORAGE, available
from elastic.local.apiserver.aggregation.asking import MISSED, Asking, about
from elastic.local.apiserver.aggregation.listed import Listed, Malformed, read
from elastic.local.apiserver.aggregation.remotes import Remote, Remotes
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.objects import now_text
from elastic.local.apiserver.routes import Routes, Unreachable
from elastic.local.apiserver.store import Change, Stale, Store, Unwritable
from elastic.local.dialled import bounded, reason

log = logging.getLogger(__name__)
AGGREGATOR = User("system:kube-aggregator", ("system:masters",))
LISTER = User("system:kube-aggregator")
"""A real API server asks as AGGREGATOR whether a server answers, and as LISTER which resources it serves."""
LOOK_EVERY_S, FIRST_RETRY_S = 30.0, 0.5
WAIT = aiohttp.ClientTimeout(total=5)
MOST_DOCUMENT = 4 << 20
GATHER_S = 0.05
_BEHIND = ("services", "endpointslices.discovery.k8s.io", "pods")


class Availability:
    def __init__(self, store: Store, remotes: Remotes, routes: Routes, asking: Asking) -> None:
        self._store, self._remotes, self._routes, self._asking = store, remotes, routes, asking
        self._changed: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._remotes.appeared = lambda remote: self._follow(group, remote)
            for remote in self._remotes:
                self._follow(group, remote)
            for resource in _BEHIND:
                self._store.subscribe(resource, self._behind)
            await asyncio.Event().wait()

    def _follow(self, group: asyncio.TaskGroup, remote: Remote) -> None:
        self._changed[remote.name] = asyncio.Event()
        task = group.create_task(self._keep(remote, self._changed[remote.name]))
        remote.ended.append(task.cancel)

    def _behind(self, change: Change) -> None:
        """Wake the checks that a change may concern. A pod may be behind any service of its namespace."""
        for remote in self._remotes:
            if remote.namespace == change.after.namespace and (change.resource != "services" or change.after.name == remote.service):
                self._changed[remote.name].set()

    async def _keep(self, remote: Remote, changed: asyncio.Event) -> None:
        retry = FIRST_RETRY_S
        while True:
            place = self._place(remote)
            passed = await self._look(remote)
            await self._pause(remote, place, changed, LOOK_EVERY_S if passed else retry)
            retry = FIRST_RETRY_S if passed else min(retry * 2, LOOK_EVERY_S)

    async def _pause(self, remote: Remote, place: str, changed: asyncio.Event, seconds: float) -> None:
        """Wait for this time, or until the service leads to another place."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._place(remote) == place:
                    await changed.wait()
                    changed.clear()
                    await asyncio.sleep(GATHER_S)

    def _place(self, remote: Remote) -> str:
        try:
            found = self._routes.find(remote.host, remote.port)
        except Unreachable as error:
            return str(error)
        return f"{found.host}:{found.port}"

    async def _look(self, remote: Remote) -> bool:
        """Ask the server, write the condition, and return whether it answers."""
        condition = self._without_endpoints(remote) or await self._asked(remote)
        if condition["status"] != "True":
            remote.resources = None
        self._write(remote, condition)
        return bool(condition["status"] == "True")

    def _without_endpoints(self, remote: Remote) -> Json | None:
        """Return the condition if a request cannot even be sent, otherwise None."""
        where = f'service/{remote.service} in "{remote.namespace}"'
        entry = self._store.get("services", remote.namespace, remote.service)
        if entry is None:
            return _condition("False", "ServiceNotFound", f"{where} is not present")
        spec = entry.load().get("spec") or {}
        if spec.get("type", "ClusterIP") != "ClusterIP":
            return None
        port = next((p for p in spec.get("ports") or () if p["port"] == remote.port), None)
        if port is None:
            return _condition("False", "ServicePortError", f"{where} is not listening on port {remote.port}")
        with contextlib.suppress(Unreachable):
            self._routes.find(remote.host, remote.port)
            return None
        if not spec.get("selector") and not self._routes.has_slices(remote.namespace, remote.service):
            return _condition("False", "EndpointsNotFound", f"cannot find endpointslices for {where}")
        message = f'endpointslices for {where} have no addresses with port name "{port.get("name") or ""}"'
        return _condition("False", "MissingEndpoints", message)

    async def _asked(self, remote: Remote) -> Json:
        url = f"https://{remote.host}:{remote.port}{remote.path}"
        try:
            async with self._request(remote, AGGREGATOR) as answer:
                if not 200 <= answer.status < 300:
                    raise ValueError(f"bad status from {url}: {answer.status}")
        except MISSED as error:
            return _condition("False", "FailedDiscoveryCheck", f"failing or missing response from {url}: {reason(error)}")
        remote.resources = await self._resources(remote)
        return _condition("True", "Passed", "all checks passed")

    async def _resources(self, remote: Remote) -> tuple[Listed, ...] | None:
        """Return the server's resources, or None if it does not tell them.

        As in a real cluster, only discovery shows that; the condition says only whether the server answers.
        """
        try:
            async with self._request(remote, LISTER) as answer:
                found = read(await bounded(answer, most=MOST_DOCUMENT)) if answer.status == 200 else None
        except Malformed as error:
            if remote.unread != str(error):
                log.warning("the list of resources of %s cannot be read, so its group is stale: %s", remote.name, error)
            remote.unread = str(error)
            return None
        except MISSED:
            return None
        remote.unread = ""
        return found

    def _request(self, remote: Remote, user: User) -> aiohttp.client._RequestContextManager:
        headers = [("Accept", "application/json"), ("Accept-Encoding", "identity"), *about(user)]
        return self._asking.request(remote, "GET", remote.path, headers=headers, timeout=WAIT)

    def _write(self, remote: Remote, condition: Json) -> None:
        entry = self._store.get(STORAGE, "", remote.name)
        if entry is None:
            return
        obj = entry.load()
        old = available(obj)
        if all(old.get(key) == condition[key] for key in ("status", "reason", "message")):
            return
        if old.get("status") == condition["status"]:
            condition = {**condition, "lastTransitionTime": old["lastTransitionTime"]}
        others = [c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] != "Available"]
        obj["status"] = {"conditions": [*others, condition]}
        # If the object has changed meanwhile, its newer state brings us here again.
        with contextlib.suppress(Stale, Unwritable):
            self._store.put(STORAGE, "", remote.name, obj=obj, expected=entry)


def _condition(status: str, reason: str, message: str) -> Json:
    return {"type": "Available", "status": status, "lastTransitionTime": now_text(), "reason": reason, "message": message}
