"""Follow a job from its creation to its end: its conditions, its Events and its pods' Events, and its containers' output.

Each change is reported once, even if connections break or the server restarts. This module knows the kinds' names and containers. It
neither judges nor prints the changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp

from elastic.api.kinds import GROUP, VERSION, WORKER, Kind, as_owned
from elastic.api.names import JOB_NAME, pod_name
from elastic.api.owners import is_owned_by
from elastic.api.template import default_container
from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.lines import Lines, Text
from elastic.kube.processes import processes_per_worker
from elastic.kube.resources import EVENTS, PODS, Object, Resource

LAST_LINES_S = 10.0
"""Seconds for which the containers of a finished job may continue to print."""
SETTLE_S = 0.5
"""A log ends a moment before the pod's status says that its container ended."""
TRIES_AFTER_END = 20


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"


@dataclass(frozen=True, slots=True)
class FollowedJob:
    kind: Kind
    namespace: str
    name: str
    uid: str

    @property
    def resource(self) -> Resource:
        return resource_of(self.kind)


@dataclass(frozen=True, slots=True)
class ConditionNews:
    """A condition of the job became true, or stayed true with another message."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Event:
    """A component's report about the job or one of its pods."""

    kind: str
    about: str
    is_warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line that the training container of a pod printed."""

    pod: str
    text: str
    is_passing: bool = False
    """Whether the next line overwrites it."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of the pods' agents from now on, as far as the job's status says."""

    by_pod: Mapping[str, int]
    processes: int | None = 1
    """Processes of each agent, with consecutive ranks; None if only the node knows how many."""


Happening = ConditionNews | Event | Line | Ranks


def resource_of(kind: Kind) -> Resource:
    return Resource(GROUP, VERSION, kind.plural, kind=kind.name)


async def follow(kube: Kube, job: FollowedJob, tell: Callable[[Happening], None], *, tail: int | None = None) -> Outcome:
    """Report all past and future changes of the job, until it has ended.

    With `tail`, report only this number of the lines that its containers have printed until now. It fails only if `tell` raises.
    """
    async with asyncio.TaskGroup() as tasks:
        logs = _Logs(kube, job, tell=tell, tasks=tasks, tail=tail)
        following = _Following(kube, job, tell=tell, logs=logs)
        watches = [tasks.create_task(cache.run()) for cache in following.caches]
        outcome = await following.over
        await following.see_pods(LAST_LINES_S)
        await logs.drain(LAST_LINES_S)
        for watch in watches:
            watch.cancel()
        logs.stop()
    return outcome


class _Following:
    """Turns changes of the job, its events and its pods into happenings."""

    def __init__(self, kube: Kube, job: FollowedJob, *, tell: Callable[[Happening], None], logs: _Logs) -> None:
        self._job, self._tell, self._logs = job, tell, logs
        self.over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._conditions: dict[str, tuple[str, str]] = {}
        self._pods: set[str] = set()
        self._ranks = ""
        jobs: Cache[Object] = Cache(kube, job.resource, project=_raw, namespace=job.namespace, fields=f"metadata.name={job.name}")
        pods: Cache[Object] = Cache(kube, PODS, project=_raw, namespace=job.namespace, labels=f"{JOB_NAME}={job.name}")
        events: Cache[Object] = Cache(kube, EVENTS, project=_raw, namespace=job.namespace)
        jobs.subscribe(self._job_changed)
        pods.subscribe(self._pod_changed)
        events.subscribe(self._event_changed)
        self.caches = (jobs, pods, events)
        self._listed = pods

    async def see_pods(self, within_s: float) -> None:
        """Wait for the pods of a job that had already ended, which may be seen after its condition."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._listed.wait_synced()

    def _job_changed(self, change: ViewChange[Object]) -> None:
        current = change.new
        if current is None or current["metadata"]["uid"] != self._job.uid:
            self._end(Outcome.DELETED)
            return
        status = current.get("status") or {}
        self._see_ranks(str((status.get("elastic") or {}).get("ranks") or ""), current)
        for condition in status.get("conditions") or ():
            self._look_at(condition)

    def _see_ranks(self, indexes: str, job: Object) -> None:
        if indexes == self._ranks:
            return
        self._ranks = indexes
        kind = as_owned(self._job.kind, job["metadata"])
        pods = [pod_name(kind, self._job.name, WORKER, int(index)) if index.isdecimal() else "" for index in indexes.split(",")]
        self._tell(Ranks({pod: rank for rank, pod in enumerate(pods) if pod}, processes_per_worker(job["spec"])))

    def _look_at(self, condition: Object) -> None:
        type, message = condition["type"], condition.get("message", "")
        fact = (condition["status"], message)
        if condition["status"] == "True" and self._conditions.get(type) != fact:
            self._tell(ConditionNews(type, condition.get("reason", ""), message))
        self._conditions[type] = fact
        if condition["status"] == "True" and type in (Outcome.SUCCEEDED, Outcome.FAILED):
            self._end(Outcome(type))

    def _end(self, outcome: Outcome) -> None:
        if not self.over.done():
            self.over.set_result(outcome)

    def _pod_changed(self, change: ViewChange[Object]) -> None:
        pod = change.new if change.new is not None else change.old
        if pod is None or not _is_of(pod, self._job):
            return
        self._pods.add(pod["metadata"]["uid"])
        self._logs.see(pod, is_there=change.new is not None, is_new=self._listed.synced)

    def _event_changed(self, change: ViewChange[Object]) -> None:
        event = change.new
        if event is None or change.old is not None:
            return
        about = event.get("involvedObject") or {}
        is_warning = event.get("type") == "Warning"
        if about.get("uid") == self._job.uid or (is_warning and about.get("uid") in self._pods):
            told = Event(about.get("kind", ""), about.get("name", ""), is_warning, event.get("reason", ""), event.get("message", ""))
            self._tell(told)


Run = tuple[str, int]
"""One run of a pod's training container: the pod's uid and how often the container was restarted before."""


class _Logs:
    """Reads the output of every run of the training containers."""

    def __init__(
        self, kube: Kube, job: FollowedJob, *, tell: Callable[[Happening], None], tasks: asyncio.TaskGroup, tail: int | None = None
    ) -> None:
        self._kube, self._job, self._tell, self._tasks, self._tail = kube, job, tell, tasks, tail
        self._readers: dict[Run, asyncio.Task[None]] = {}
        self._running: set[Run] = set()
        self._newest: dict[str, int] = {}

    async def drain(self, within_s: float) -> None:
        readers = [reader for reader in self._readers.values() if not reader.done()]
        if readers:
            await asyncio.wait(readers, timeout=within_s)

    def stop(self) -> None:
        for reader in self._readers.values():
            reader.cancel()

    def see(self, pod: Object, *, is_there: bool, is_new: bool = True) -> None:
        container = default_container(pod, self._job.kind)["name"]
        status = _container_status(pod, container)
        state = (status.get("state") or {}) if is_there else {}
        run = (pod["metadata"]["uid"], int(status.get("restartCount", 0)))
        self._newest[run[0]] = max(run[1], self._newest.get(run[0], 0))
        self._running -= {other for other in self._running if other[0] == run[0]}
        if "running" in state:
            self._running.add(run)
        if run not in self._readers and ("running" in state or "terminated" in state):
            reading = self._read(run, pod["metadata"]["name"], container=container, tail=None if is_new else self._tail)
            self._readers[run] = self._tasks.create_task(reading)

    async def _read(self, run: Run, pod: str, *, container: str, tail: int | None) -> None:
        """Report each line once.

        A log is complete only if it was read to its end after the run's end. If it broke off before, because the server or the node's agent
        restarted, it is read again from its beginning, without the reported lines.
        """
        told, before_last = (0, 0) if tail is None else await self._passed_over(pod, container=container, tail=tail)
        tries = TRIES_AFTER_END
        while tries:
            was_over = run not in self._running
            later = self._newest[run[0]] - run[1]
            if later > 1:  # a kubelet keeps the output of one run before the newest
                return
            number = prefix = 0
            try:
                log = self._kube.logs(pod, namespace=self._job.namespace, container=container, follow=True, previous=later == 1)
                async for line in _lines(log):
                    number, before, prefix = number + 1, prefix, hash((prefix, line))
                    if number == told and before != before_last:
                        return  # other lines than were told: the next run has begun, which another reader reads
                    if number > told:
                        told, before_last = number, before
                        self._tell(Line(pod, *line))
                if was_over:
                    return
            except KubeError as error:
                if was_over and error.code in (400, 404):  # the pod is gone, or its next run has not begun
                    return
            except _BrokenOff:
                pass
            tries -= was_over
            await asyncio.sleep(SETTLE_S)

    async def _passed_over(self, pod: str, *, container: str, tail: int) -> tuple[int, int]:
        """Return the number of lines before the last `tail` lines of the log, and a hash of the lines before the last of those."""
        ends = deque([(0, 0)], maxlen=tail + 1)
        number = prefix = 0
        try:
            async for line in _lines(self._kube.logs(pod, namespace=self._job.namespace, container=container)):
                number, before, prefix = number + 1, prefix, hash((prefix, line))
                if not line.is_passing:
                    ends.append((number, before))
        except (KubeError, _BrokenOff):
            return 0, 0
        return ends[0]


class _BrokenOff(Exception):
    """A log did not come to its end. An exception of `tell` is another matter: the reader of the output may have left."""


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[Text]:
    lines = Lines()
    try:
        async for chunk in chunks:
            for line in lines.of(chunk):
                yield line
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _BrokenOff from error
    for line in lines.last():
        yield line


def _raw(item: Object) -> Object:
    return item


def _is_of(pod: Object, job: FollowedJob) -> bool:
    """Return whether the job owns the pod. A pod of an earlier job of the same name carries the same labels."""
    return is_owned_by(pod["metadata"], job.uid)


def _container_status(pod: Object, container: str) -> dict[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((status for status in statuses if status.get("name") == container), {})
