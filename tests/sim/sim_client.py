"""A process's client of the simulated API server, with the verbs of elastic.kube.client and the faults of a real network.

A request is carried out or not, at once or much later, and its sender may never hear which.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from sim_api import Api, matches

from elastic.kube.answers import WatchEvent, WatchType
from elastic.kube.client import Patch
from elastic.kube.errors import KubeError
from elastic.kube.paging import Listing
from elastic.kube.resources import Object, Resource

TIMEOUT_S = 30.0
BOOKMARK_S = 60.0


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances per request, per watch, and the usual delays in seconds."""

    refused: float = 0.0
    unreachable: float = 0.0
    """Nothing arrived."""
    answer_lost: float = 0.0
    """It was done, and the sender hears only that the connection broke."""
    late: float = 0.0
    """It is done after its sender has given up on it."""
    watch_breaks: float = 0.0
    watch_gone: float = 0.0
    watch_stalls: float = 0.0
    doubled: float = 0.0
    delay_s: float = 0.02
    stall_s: float = 8.0


CALM = Weather()


@dataclass(slots=True)
class Sky:
    """The weather now, which all clients share. `down_until` is when the API server answers again."""

    weather: Weather = CALM
    down_until: float = 0.0


async def or_none(answer: Awaitable[Object]) -> Object | None:
    """Return None if the object does not exist, as Kube.find does."""
    try:
        return await answer
    except KubeError as error:
        if error.code == 404:
            return None
        raise


class SimKube:
    """Stands in for elastic.kube.client.Kube. `on_call` hears before and after each request; it may end the process there."""

    def __init__(self, api: Api, sky: Sky, draw: random.Random, *, actor: str, on_call: Callable[[str], bool] | None = None) -> None:
        self.actor = actor
        self.calls = 0
        self.gets: list[tuple[Resource, str]] = []
        self.forbidden: Resource | None = None
        self._api = api
        self._sky = sky
        self._draw = draw
        self._on_call = on_call or (lambda moment: False)
        self._is_dead = False
        self.awake = asyncio.Event()
        """Cleared while the process stands still, as under SIGSTOP."""
        self.reach = asyncio.Event()
        """Cleared while the network keeps the API from the process."""
        self.awake.set()
        self.reach.set()

    def die(self) -> None:
        """Send nothing more, and hear no answer."""
        self._is_dead = True

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None) -> Object:
        self.gets.append((resource, name))
        if resource == self.forbidden:
            raise KubeError(code=403, reason="Forbidden", message=f"{resource.plural} {name!r} is forbidden")
        return await self._call(lambda: self._api.get(resource, name), writes=False)

    async def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
        return await or_none(self.get(resource, name, namespace=namespace))

    async def list(
        self, resource: Resource, *, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> Listing:
        def act() -> Listing:
            items = [self._api.get(resource, item["metadata"]["name"]) for item in self._api.all(resource) if matches(item, labels)]
            return Listing(items, str(self._api.version))

        return await self._call(act, writes=False)

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        return await self._call(lambda: self._api.create(resource, body, actor=self.actor))

    async def replace(self, resource: Resource, body: Object, *, name: str, namespace: str | None = None) -> Object:
        return await self._call(lambda: self._api.replace(resource, name, body, actor=self.actor))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object,
        *,
        namespace: str | None = None,
        kind: Patch = Patch.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Object:
        return await self._call(lambda: self._api.patch(resource, name, body, kind=kind, subresource=subresource, actor=self.actor))

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
    ) -> Object:
        return await self._call(lambda: self._api.delete(resource, name, uid=uid, grace_s=grace_s, actor=self.actor))

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after a version, in order; each stream lags as it likes, and may break or be told that its version is gone."""
        version = int(resource_version or 0)
        changed = asyncio.Event()

        def hear(which: Resource) -> None:
            if which == resource:
                changed.set()

        self._api.watchers.append(hear)
        try:
            while True:
                await self._pause()
                await self._passes()
                await self._weathered()
                changed.clear()
                for entry in list(self._api.since(resource, version)):
                    version = entry.version
                    event = WatchEvent(WatchType(entry.type), orjson.loads(entry.raw))
                    if matches(event.object, labels):
                        yield event
                        if self._chance(self._sky.weather.doubled):
                            yield WatchEvent(event.type, orjson.loads(entry.raw))
                if changed.is_set():
                    continue
                try:
                    async with asyncio.timeout(BOOKMARK_S):
                        await changed.wait()
                except TimeoutError:
                    yield WatchEvent(WatchType.BOOKMARK, {"metadata": {"resourceVersion": str(version)}})
        finally:
            self._api.watchers.remove(hear)

    async def _weathered(self) -> None:
        """Decide what befalls a watch when something is to be told."""
        weather = self._sky.weather
        if self._is_dead:
            await asyncio.Event().wait()
        if self._is_down or self._chance(weather.watch_breaks):
            raise aiohttp.ClientPayloadError("the connection broke")
        if self._chance(weather.watch_gone):
            raise KubeError(code=410, reason="Expired", message="too old resource version")
        if self._chance(weather.watch_stalls):
            await asyncio.sleep(self._draw.uniform(0, weather.stall_s))

    @property
    def _is_down(self) -> bool:
        return asyncio.get_running_loop().time() < self._sky.down_until

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self._draw.random() < chance

    async def _passes(self) -> None:
        """Wait until something passes between the process and the API server."""
        while not (self.awake.is_set() and self.reach.is_set()):
            await self.reach.wait()
            await self.awake.wait()

    async def _pause(self) -> None:
        await asyncio.sleep(self._draw.expovariate(1 / self._sky.weather.delay_s))

    async def _call(self, act: Callable[[], Any], *, writes: bool = True) -> Any:
        if self._is_dead or (writes and self._on_call("before")):
            await asyncio.Event().wait()
        self.calls += writes
        weather, loop = self._sky.weather, asyncio.get_running_loop()
        await self._pause()
        await self._passes()
        if self._is_dead:
            await asyncio.Event().wait()
        if self._is_down or self._chance(weather.unreachable):
            raise KubeError(code=0, reason="Unreachable", message="no connection")
        if self._chance(weather.refused):
            code, reason = self._draw.choice([(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError"), (504, "Timeout")])
            raise KubeError(code=code, reason=reason, message="not now")
        if writes and self._chance(weather.late):
            loop.call_later(self._draw.uniform(0, 2 * TIMEOUT_S), self._do_late, act)
            await asyncio.sleep(TIMEOUT_S)
            raise KubeError(code=0, reason="Unreachable", message="no answer in time")
        answer = act()
        if writes and self._on_call("after"):
            await asyncio.Event().wait()
        await self._pause()
        await self._passes()
        if self._is_dead:
            await asyncio.Event().wait()
        if self._chance(weather.answer_lost):
            raise KubeError(code=0, reason="Unreachable", message="the connection broke")
        return answer

    def _do_late(self, act: Callable[[], Any]) -> None:
        """Do a request after its sender gave up. No law holds for its time of arrival, only for its consequences."""
        name, self.actor = self.actor, f"late {self.actor}"
        try:
            act()
        except KubeError:
            return  # nobody waits for the answer
        finally:
            self.actor = name
