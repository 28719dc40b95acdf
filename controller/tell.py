"""Writes Events about a job, each piece of news once: its name follows from what it says, so that a second telling is refused."""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime

from controller.actions import News
from controller.fence import Writer
from elastic.api.kinds import API_VERSION, KINDS
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, Object

log = logging.getLogger(__name__)
REMEMBERED = 20_000
LONGEST_MESSAGE = 1000
COMPONENT = "elastic-controller"


class Teller:
    """Remembers what was told lately, so that a steady state costs no requests."""

    def __init__(self, kube: Writer) -> None:
        self._kube = kube
        self._told: OrderedDict[str, None] = OrderedDict()

    async def tell(self, job: Object, news: Iterable[News], *, now: datetime, strict: bool = False) -> None:
        component = KINDS[job["kind"]].operator_name if strict else COMPONENT
        for item in news:
            event = event_for(job, item, now=now, component=component)
            name = event["metadata"]["name"]
            if name in self._told:
                continue
            try:
                await self._kube.create(EVENTS, event, namespace=event["metadata"]["namespace"])
            except KubeError as error:
                if error.reason != "AlreadyExists":
                    # News is not worth failing a round for; it is told again when the same round comes again.
                    about = {"reason": item.reason, "job": job["metadata"]["name"]}
                    log.warning("an event was not written", extra=about | {"error": str(error)})
                    continue
            self._told[name] = None
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)


def together(news: Iterable[News]) -> list[News]:
    """What one round did of one sort, as one piece of news."""
    sorts: dict[tuple[str, str], list[News]] = {}
    for item in news:
        sorts.setdefault((item.type, item.reason), []).append(item)
    return [items[0] if len(items) == 1 else _joined(items) for items in sorts.values()]


def _joined(items: list[News]) -> News:
    names = [item.message.partition(": ")[2] for item in items]
    opening = items[0].message.partition(": ")[0]
    return News(items[0].type, items[0].reason, f"{opening}: {', '.join(sorted(names))}", about=" ".join(sorted(i.about for i in items)))


def event_for(job: Object, news: News, *, now: datetime, component: str) -> Object:
    metadata = job["metadata"]
    said = "\0".join((metadata["uid"], news.type, news.reason, news.about, news.message))
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = metadata.get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": job["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": news.type,
        "reason": news.reason,
        "message": news.message[:LONGEST_MESSAGE],
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
