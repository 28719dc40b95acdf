"""Writes Kubernetes Events about pods and nodes. Best effort, as everywhere: a lost event is logged and nothing waits for it."""

import asyncio
import logging
import time
import uuid

import aiohttp

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS
from elastic.local.agent.environment import Object
from elastic.local.agent.status import timestamp

log = logging.getLogger(__name__)

MOST_WAITING = 1000


class Recorder:
    """Queues events of one component and sends them one after the other; when too many wait, new ones are dropped."""

    def __init__(self, kube: Kube, *, component: str, host: str = "") -> None:
        self._kube = kube
        self._source = {"component": component, **({"host": host} if host else {})}
        self._queue: asyncio.Queue[Object] = asyncio.Queue(MOST_WAITING)

    def pod(self, pod: Object, *, reason: str, message: str, warning: bool = False, container: str = "") -> None:
        metadata = pod["metadata"]
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
        if container:
            about["fieldPath"] = f"spec.containers{{{container}}}"
        self._put(about, namespace=metadata["namespace"], reason=reason, message=message, warning=warning)

    def node(self, node: Object, *, reason: str, message: str, warning: bool = False) -> None:
        metadata = node["metadata"]
        about = {"kind": "Node", "apiVersion": "v1", "name": metadata["name"], "uid": metadata.get("uid", "")}
        self._put(about, namespace="default", reason=reason, message=message, warning=warning)

    def _put(self, about: Object, *, namespace: str, reason: str, message: str, warning: bool) -> None:
        now = timestamp(time.time())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about['name']}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": about,
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
            "source": self._source,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
        }
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("too many events wait; dropped %s about %s", reason, about["name"])

    async def run(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._kube.create(EVENTS, event, namespace=event["metadata"]["namespace"])
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.info("event %s about %s was not written: %s", event["reason"], event["involvedObject"]["name"], error)
