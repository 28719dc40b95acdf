"""kopf's watch of the jobs as far as it can be seen from outside.

It lists and watches, hands on what it hears in another order for other objects, and says nothing of what was deleted in a gap.
"""

import asyncio
import random

import aiohttp
from sim_client import SimKube

from elastic.kube.answers import WatchType
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource
from elastic_training.controller.watching.kopf_watch import Feed

PAUSE_S = 0.1
HAND_ON_S = 0.005


class SimKopf:
    def __init__(self, kube: SimKube, feed: Feed, resource: Resource, draw: random.Random) -> None:
        self._kube, self._feed, self._resource, self._draw = kube, feed, resource, draw
        self._queues: dict[str, asyncio.Queue[tuple[str | None, Object]]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self._list_and_watch(tasks)
                except (KubeError, aiohttp.ClientError):
                    await asyncio.sleep(PAUSE_S)

    async def _list_and_watch(self, tasks: asyncio.TaskGroup) -> None:
        listing = await self._kube.list(self._resource)
        self._feed.listed()
        for item in listing.items:
            self._hand_on(tasks, None, item)
        version = listing.resource_version
        while True:
            try:
                async for event in self._kube.watch(self._resource, resource_version=version):
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type is not WatchType.BOOKMARK:
                        self._hand_on(tasks, event.type.value, event.object)
            except aiohttp.ClientError:
                await asyncio.sleep(PAUSE_S)

    def _hand_on(self, tasks: asyncio.TaskGroup, type: str | None, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if uid not in self._queues:
            self._queues[uid] = asyncio.Queue()
            tasks.create_task(self._work(self._queues[uid]))
        self._queues[uid].put_nowait((type, item))

    async def _work(self, queue: "asyncio.Queue[tuple[str | None, Object]]") -> None:
        while True:
            type, item = await queue.get()
            await asyncio.sleep(self._draw.expovariate(1 / HAND_ON_S))
            self._feed.take(type, item)
