"""Write each Event about a job once: an Event's name follows from its content, so the API server refuses a second one.

News of one reason from one reconcile shares an Event. After a restart of the controller, some news may appear again in another combination.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime

from elastic.api.kinds import API_VERSION
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, Object
from elastic.runtime.fence import is_lapse
from elastic.runtime.terminating import is_terminating
from elastic.runtime.writers import Writer
from elastic_training.controller.deciding.actions import JobEvent
from elastic_training.controller.facts.keys import Key

log = logging.getLogger(__name__)
REMEMBERED = 1000
"""Events of one job."""
LONGEST_MESSAGE = 1000
AT_ONCE, EVERY_S = 50, 10.0
"""Events of one reason of a job: how many at once, and in how many seconds another one. A worker can make news as often as it likes."""
COMPONENT = "elastic-controller"


class EventRecorder:
    """Remembers recent Events, so that a steady state costs no requests."""

    def __init__(self, kube: Writer) -> None:
        self._kube = kube
        self._told: dict[str, OrderedDict[str, None]] = {}
        self._spent: dict[str, dict[str, tuple[float, datetime]]] = {}
        """By job and reason, how many Events were written that count at this time."""

    async def tell(self, job: Object, news: Iterable[JobEvent], *, now: datetime) -> None:
        uid = job["metadata"]["uid"]
        told = self._told.get(uid, OrderedDict[str, None]())
        fresh = {digest: item for item in news if (digest := _digest(uid, item)) not in told}
        for digests in _sorts(fresh):
            reason = fresh[digests[0]].reason
            if (spent := self._spent_by(uid, reason, now) + 1.0) > AT_ONCE:
                continue
            event = event_for(job, _joined([fresh[digest] for digest in digests]), now=now)
            if await self._is_written(event):
                self._spent.setdefault(uid, {})[reason] = (spent, now)
                self._remember(uid, digests)

    def forget(self, job_uid: str) -> None:
        self._told.pop(job_uid, None)
        self._spent.pop(job_uid, None)

    def _spent_by(self, uid: str, reason: str, now: datetime) -> float:
        """Return how many Events of this reason still count. Events that the API server refused do not."""
        spent, at = self._spent.get(uid, {}).get(reason, (0.0, now))
        return max(0.0, spent - max(0.0, (now - at).total_seconds()) / EVERY_S)

    async def _is_written(self, event: Object) -> bool:
        metadata = event["metadata"]
        try:
            await self._kube.create(EVENTS, event, namespace=metadata["namespace"])
        except KubeError as error:
            if error.reason != "AlreadyExists":
                # An Event is not worth failing a reconcile for; it is written when the same news comes again.
                about = event["involvedObject"]
                named = Key(about["kind"], about["namespace"], about["name"]).fields(about["uid"])
                level = logging.DEBUG if is_lapse(error) or is_terminating(error) else logging.WARNING
                log.log(level, "an event was not written", extra=named | {"reason": event["reason"], "error": str(error)})
                return False
        return True

    def _remember(self, uid: str, digests: Iterable[str]) -> None:
        told = self._told.setdefault(uid, OrderedDict())
        for digest in digests:
            told[digest] = None
        while len(told) > REMEMBERED:
            told.popitem(last=False)


def _sorts(news: Mapping[str, JobEvent]) -> list[list[str]]:
    """Return the news that can share an Event: they have the same reason and the same words up to the colon."""
    sorts: dict[tuple[str, str, str], list[str]] = {}
    for digest, item in news.items():
        sorts.setdefault((item.type, item.reason, item.message.partition(": ")[0]), []).append(digest)
    return list(sorts.values())


def _joined(items: list[JobEvent]) -> JobEvent:
    if len(items) == 1:
        return items[0]
    opening = items[0].message.partition(": ")[0]
    said = ", ".join(sorted({rest for item in items if (rest := item.message.partition(": ")[2])}))
    message = f"{opening}: {said}" if said else opening
    return JobEvent(items[0].type, items[0].reason, message, about=" ".join(sorted(item.about for item in items)))


def _digest(uid: str, news: JobEvent) -> str:
    said = "\0".join((uid, news.type, news.reason, news.about, news.message))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def event_for(job: Object, news: JobEvent, *, now: datetime) -> Object:
    metadata = job["metadata"]
    digest = _digest(metadata["uid"], news)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = metadata.get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": job.get("apiVersion", API_VERSION),
            "kind": job["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": news.type,
        "reason": news.reason,
        "message": news.message[:LONGEST_MESSAGE],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
