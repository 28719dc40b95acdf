"""Write Kubernetes Events about pods and nodes. An Event that repeats is counted, and not written again.

As in any cluster, Events may be lost. A lost Event is logged, and nothing waits for it.
"""

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
MOST_REMEMBERED = 1000


class Recorder:
    """Queues events of one component and sends them one after the other; when too many wait, new ones are dropped."""

    def __init__(self, kube: Kube, *, component: str, host: str = "") -> None:
        self._kube = kube
        self._source = {"component": component, **({"host": host} if host else {})}
        self._queue: asyncio.Queue[Object] = asyncio.Queue(MOST_WAITING)
        self._written: dict[tuple[str, str, str], tuple[str, int]] = {}
        """Name and count of what was written, by the object's uid, reason and message."""

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

    def autoscaler(self, hpa: Object, *, reason: str, message: str, warning: bool = False) -> None:
        metadata = hpa["metadata"]
        about = {"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "resourceVersion": metadata["resourceVersion"]}
        about |= {key: metadata[key] for key in ("namespace", "name", "uid")}
        self._put(about, namespace=metadata["namespace"], reason=reason, message=message, warning=warning)

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
                await self._write(event)
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.info("event %s about %s was not written: %s", event["reason"], event["involvedObject"]["name"], error)

    async def _write(self, event: Object) -> None:
        namespace = event["metadata"]["namespace"]
        key = (event["involvedObject"]["uid"], event["reason"], event["message"])
        name, count = self._written.pop(key, ("", 0))
        if name:
            again = {"count": count + 1, "lastTimestamp": event["lastTimestamp"]}
            try:
                await self._kube.patch(EVENTS, name, again, namespace=namespace)
            except KubeError as error:
                if error.code != 404:
                    raise
                # The API server keeps events for a while only.
                name, count = "", 0
        if not name:
            name = event["metadata"]["name"]
            await self._kube.create(EVENTS, event, namespace=namespace)
        self._written[key] = (name, count + 1)
        if len(self._written) > MOST_REMEMBERED:
            del self._written[next(iter(self._written))]
