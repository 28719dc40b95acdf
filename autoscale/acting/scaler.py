"""Carry out a decision: write the annotation, then the number of workers through /scale, then an Event that says why."""

import hashlib
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime

from elastic.api.kinds import API_VERSION
from elastic.api.scaling import ANNOTATION, MANAGER, DecisionRecord, as_text
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, Object
from elastic.runtime.fence import Left, in_time
from elastic.runtime.terminating import TerminatingNamespaces, is_terminating
from elastic_training.autoscale.deciding.jobs import ScaledJob
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.jobs import JOBS

log = logging.getLogger(__name__)
LONGEST_MESSAGE = 1000
IN_TROUBLE = "AutoscalerInTrouble"


class Changed(Exception):
    """The job is not as it was when the decision was made."""


class Scaler:
    def __init__(self, kube: Kube, left: Left | None) -> None:
        self._kube = kube
        self._left = left
        self._namespaces = TerminatingNamespaces()

    async def annotate(self, seen: ScaledJob, record: DecisionRecord) -> str:
        """Write the decision and the facts that must survive a restart. Return the version of the job that has them."""
        metadata = {"uid": seen.uid, "annotations": {ANNOTATION: as_text(record)}}
        written = await self._patch(seen.key, {"metadata": metadata})
        return str(written["metadata"].get("resourceVersion", ""))

    async def scale(self, seen: ScaledJob, count: int, *, version: str) -> None:
        """Scale the job, unless somebody has changed it since the decision. Then raise Changed, because the other change must stay."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": count}}
        try:
            await self._patch(seen.key, body, subresource="scale")
        except KubeError as error:
            if error.reason == "Conflict":
                raise Changed from error
            raise

    async def tell(self, seen: ScaledJob, message: str, *, count: int, now: float) -> None:
        await self._write(seen, scaled_event(seen, message, count=count, now=now))

    async def warn(self, seen: ScaledJob, message: str, *, now: float) -> None:
        """Write a warning once, for as long as the cluster keeps Events."""
        await self._write(seen, _event(seen, message, message, type="Warning", reason=IN_TROUBLE, now=now))

    async def _write(self, seen: ScaledJob, event: Object) -> None:
        """Write an Event. If that fails, only log it."""
        try:
            await self._fenced_create(event)
        except KubeError as error:
            if error.reason != "AlreadyExists" and not is_terminating(error):
                log.warning("an event was not written", extra={**seen.key.fields(), "error": str(error)})

    async def _patch(self, key: JobName, body: Object, *, subresource: str | None = None) -> Object:
        def send() -> Awaitable[Object]:
            return self._kube.patch(JOBS[key.kind], key.name, body, namespace=key.namespace, subresource=subresource, field_manager=MANAGER)

        return await (in_time(self._left, send) if self._left is not None else send())

    async def _fenced_create(self, event: Object) -> None:
        namespace = event["metadata"]["namespace"]

        def send() -> Awaitable[Object]:
            return self._kube.create(EVENTS, event, namespace=namespace)

        left = self._left
        await self._namespaces.create(event, send if left is None else lambda: in_time(left, send), namespace=namespace)


def scaled_event(seen: ScaledJob, message: str, *, count: int, now: float) -> Object:
    return _event(seen, message, f"{count}\0{_stamp(now)}", type="Normal", reason="Autoscaled", now=now)


def _event(seen: ScaledJob, message: str, content: str, *, type: str, reason: str, now: float) -> Object:
    """Return an Event whose name follows from its content, so that the API server refuses a second one."""
    stamp = _stamp(now)
    digest = hashlib.sha256(f"{seen.uid}\0{content}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{seen.key.name[:200]}.{digest}", "namespace": seen.key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": seen.key.kind,
            "name": seen.key.name,
            "namespace": seen.key.namespace,
            "uid": seen.uid,
        },
        "type": type,
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
