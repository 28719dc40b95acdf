"""Build the answers of the API for one caller, from the caches and the records, without objects that the caller may not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from elastic.kube.resources import EVENTS, NODES, PODS
from elastic_training.autoscale.jobs import JOBS
from elastic_training.dashboard.history.book import Book
from elastic_training.dashboard.history.record import JobRecord
from elastic_training.dashboard.serving.callers import Caller
from elastic_training.dashboard.serving.shown import (
    ConditionShown,
    DisruptionShown,
    EventShown,
    JobPage,
    JobRow,
    NodeShown,
    NodesPage,
    Occupant,
    RescaleShown,
    WorkerShown,
)
from elastic_training.dashboard.watching.observer import Observer
from elastic_training.dashboard.watching.seen import EventSeen, JobSeen, NodeSeen, PodSeen, is_worker

MOST_WORKERS = 1000
MOST_OCCUPANTS = 256
MOST_DISRUPTIONS = 200
MOST_WORDS = 600
SOUND = ("Running", "Pending", "Succeeded", "Completed", "Terminating")
"""States of pods that say nothing of an error."""
NO_RECORD = JobRecord()


class Views:
    def __init__(self, observer: Observer, book: Book) -> None:
        self._observer, self._book = observer, book

    async def jobs(self, caller: Caller) -> list[JobSeen]:
        """Return the jobs that the caller may read, by name."""
        jobs = sorted(self._observer.jobs(), key=lambda job: (job.key.namespace, job.key.name, job.key.kind))
        places = list({(job.key.kind, job.key.namespace): job for job in jobs}.items())
        answers = await asyncio.gather(*(sees(caller, job) for _, job in places))
        allowed = {place for (place, _), is_allowed in zip(places, answers, strict=True) if is_allowed}
        return [job for job in jobs if (job.key.kind, job.key.namespace) in allowed]

    async def find(self, caller: Caller, namespace: str, name: str, kind: str | None) -> list[JobSeen]:
        """Return the jobs of this name; each kind may have one.

        The caller's rights are asked for first. If only an existing job led to that question, the time of the answer would reveal its name
        to callers who may not read it.
        """
        kinds = [known for known in self._observer.kinds if kind in (None, known)]
        answers = await asyncio.gather(*(caller.may_read(JOBS[known], namespace) for known in kinds))
        found = [self._observer.job(known, namespace, name) for known, is_allowed in zip(kinds, answers, strict=True) if is_allowed]
        return [job for job in found if job is not None]

    def row(self, job: JobSeen) -> JobRow:
        told, record = job.summary, self._book.get(job.uid) or NO_RECORD
        world = 0 if told.is_over else told.world if record.world is None else record.world
        return JobRow(
            uid=job.uid,
            kind=job.key.kind,
            title=told.kind.title,
            namespace=job.key.namespace,
            name=job.key.name,
            state=told.state,
            message=told.message[:300],
            waits_for=told.awaits()[:MOST_WORDS],
            still_since=str(told.hang.get("since") or "")[:64] if told.awaits() == told.next_step() else "",
            is_over=told.is_over,
            is_suspended=job.is_suspended,
            running=told.running,
            wanted=told.wanted,
            least=told.least,
            most=told.most,
            world=world,
            generation=job.generation,
            step=record.step if record.step is not None else told.step,
            stepped_at="" if told.is_over or record.stepped_at is None else datetime.fromtimestamp(record.stepped_at, UTC).isoformat(),
            step_due_s=None if told.is_over or record.stepped_at is None else record.step_due_s,
            rate=None if told.is_over or job.is_suspended or record.is_late(self._book.clock()) else record.rate,
            unit=record.unit,
            loss=record.loss,
            percent=record.percent,
            remaining_s=None if told.is_over or job.is_suspended else record.remaining_s,
            restart_count=told.restart_count,
            restarts=dict(list(told.restarts.items())[:16]),
            created=told.created,
            rescaled_at=job.rescale.at if job.rescale is not None else "",
            notices=len(job.leaving),
            gpus=sum(pod.gpus for pod in self._observer.pods_of(job) if not pod.is_over),
        )

    async def page(self, caller: Caller, job: JobSeen) -> JobPage:
        namespace, record = job.key.namespace, self._book.get(job.uid) or NO_RECORD
        sees_pods, sees_events = await caller.may_read(PODS, namespace), await caller.may_read(EVENTS, namespace)
        pods = self._observer.pods_of(job)
        workers = tuple(self._worker(job, pod) for pod in pods[:MOST_WORKERS]) if sees_pods else ()
        events = self._observer.events_of(job, pods) if sees_events else []
        return JobPage(
            job=self.row(job),
            conditions=tuple(
                ConditionShown(type=found.type, status=found.status, message=found.message, since=found.since) for found in job.conditions
            ),
            rescales=tuple(
                RescaleShown(
                    at=found.at,
                    cause=found.cause,
                    reason=found.reason,
                    from_size=found.from_size,
                    to_size=found.to_size,
                    phases=found.phases,
                    steps=found.steps,
                    began_unseen=found.began_unseen,
                    rung=found.rung,
                )
                for found in reversed(record.rescales.values())
            ),
            lost_ms=record.lost_ms,
            spent_s=record.spent(self._book.monotonic()),
            disruptions=tuple(disruptions(job)),
            autoscaler=str(job.summary.autoscaler.get("reason", ""))[:300],
            restarts_charged=job.restarts_charged,
            failed=_failed(job, [pod for pod in pods if sees_pods]),
            workers=workers,
            worker_count=len(pods) if sees_pods else 0,
            events=tuple(map(_event, events)),
            hidden=tuple(name for name, is_seen in (("pods", sees_pods), ("events", sees_events)) if not is_seen),
        )

    def _worker(self, job: JobSeen, pod: PodSeen) -> WorkerShown:
        node = self._observer.node(pod.node) if pod.node else None
        rank = job.rank_of_index.get(pod.index) if is_worker(pod) else None
        return WorkerShown(
            pod=pod.key[1],
            type=pod.type,
            index=pod.index,
            rank=rank if rank is not None else pod.fixed_rank,
            node=pod.node,
            state=pod.state,
            restarts=pod.restarts,
            created=pod.created,
            leaving=job.leaving.get(pod.key[1], ""),
            notices=pod.notices + (node.notices if node is not None else ()),
            ended=pod.ended,
            cpus=pod.cpus,
            memory=pod.memory,
            gpus=pod.gpus,
        )

    async def nodes(self, caller: Caller) -> NodesPage | None:
        """Return all nodes; None if the caller may not read them."""
        if not await caller.may_read(NODES, ""):
            return None
        told = [found for job in await self.jobs(caller) for found in disruptions(job)]
        told.sort(key=lambda found: found.noticed_at, reverse=True)
        nodes = [await self._node(caller, node) for node in self._observer.nodes()]
        return NodesPage(nodes=tuple(nodes), disruptions=tuple(told[:MOST_DISRUPTIONS]))

    async def _node(self, caller: Caller, node: NodeSeen) -> NodeShown:
        occupants, gpus = [], 0
        for pod in [pod for pod in self._observer.pods_on(node.name) if not pod.is_over][:MOST_OCCUPANTS]:
            if pod.job is not None and await caller.may_read(PODS, pod.key[0]):
                gpus += pod.gpus
                occupants.append(
                    Occupant(namespace=pod.key[0], job=pod.job.name, kind=pod.job.kind, pod=pod.key[1], state=pod.state),
                )
        return NodeShown(
            name=node.name,
            is_ready=node.is_ready,
            is_cordoned=node.is_cordoned,
            is_spot=node.is_spot,
            group=node.group,
            capacity=node.capacity,
            created=node.created,
            notices=node.notices,
            occupants=tuple(occupants),
            gpus_used=gpus,
        )


def _failed(job: JobSeen, pods: Sequence[PodSeen]) -> str:
    if job.summary.state != "Failed":
        return ""
    named = [pod for pod in pods if pod.key[1] == job.summary.failed_first]
    return next((pod.key[1] for pod in [*named, *pods] if pod in named or pod.state not in SOUND), "")


async def sees(caller: Caller, job: JobSeen) -> bool:
    return await caller.may_read(JOBS[job.key.kind], job.key.namespace)


def disruptions(job: JobSeen) -> Iterator[DisruptionShown]:
    for found in reversed(job.disruptions):
        yield DisruptionShown(
            namespace=job.key.namespace,
            job=job.key.name,
            kind=job.key.kind,
            node=found.node,
            signal=found.signal,
            workers=found.workers,
            noticed_at=_stamp(found.noticed_at),
            by=_stamp(found.by),
            outcome=found.outcome,
            pause_ms=found.pause_milliseconds,
            steps_lost=found.steps_lost,
        )


def _event(seen: EventSeen) -> EventShown:
    return EventShown(
        at=seen.at,
        type=seen.type,
        reason=seen.reason,
        about=f"{seen.about[0].lower()}/{seen.about[2]}",
        message=seen.message,
        count=seen.count,
    )


def _stamp(time: datetime | None) -> str:
    return time.isoformat() if time is not None else ""
