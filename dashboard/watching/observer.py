"""Watch jobs, their pods, nodes and Events with one watch for each collection, and tell what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from elastic.api.kinds import KINDS
from elastic.api.names import JOB_NAME
from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.resources import EVENTS, NODES, PODS, Object
from elastic.kube.view import ViewChange
from elastic.signals.signal import DisruptionSignal
from elastic.signals.table import BUILT_IN
from elastic_training.autoscale.jobs import JOBS
from elastic_training.dashboard.watching.seen import EventSeen, JobSeen, NodeSeen, PodSeen, event_seen, job_seen, node_seen, pod_seen

MOST_EVENTS = 20_000
MOST_EVENTS_OF_A_JOB = 200
UID, OWNER, ABOUT, NODE = "uid", "owner", "about", "node"


class _Newest(Cache[EventSeen]):
    """The newest Events. A cluster may have any number of them, so the oldest go above a limit."""

    def _put(self, item: Object) -> None:
        super()._put(item)
        while len(self._entries) > MOST_EVENTS:
            self._drop(next(iter(self._entries)))


class Observer:
    """`job_changed` gets the uid of a job about which something is new, `nodes_changed` is called when something is new about a node."""

    def __init__(
        self, kube: Kube, *, kinds: Iterable[str], namespace: str | None = None, table: Sequence[DisruptionSignal] = BUILT_IN
    ) -> None:
        self._jobs = {
            kind: Cache(kube, JOBS[kind], project=partial(job_seen, KINDS[kind]), namespace=namespace, indexes={UID: lambda job: [job.uid]})
            for kind in kinds
        }
        self._pods = Cache(
            kube,
            PODS,
            project=partial(pod_seen, table),
            namespace=namespace,
            labels=JOB_NAME,
            indexes={OWNER: _owners, NODE: lambda pod: [pod.node]},
        )
        # Nodes belong to no namespace: with the rights of one namespace they are not seen.
        self._nodes = Cache(kube, NODES, project=partial(node_seen, table)) if namespace is None else None
        self._events = _Newest(kube, EVENTS, project=event_seen, namespace=namespace, indexes={ABOUT: _subjects})
        self.job_changed: Callable[[str], None] = lambda uid: None
        self.job_gone: Callable[[str], None] = lambda uid: None
        self.nodes_changed: Callable[[], None] = lambda: None

    def subscribe(self) -> None:
        for jobs in self._jobs.values():
            jobs.subscribe(self._heard_of_job)
        self._pods.subscribe(self._heard_of_pod)
        self._events.subscribe(self._heard_of_event)
        if self._nodes is not None:
            self._nodes.subscribe(lambda change: self.nodes_changed() if change.old != change.new else None)

    async def run(self) -> None:
        """Keep the caches until cancelled."""
        self.subscribe()
        async with asyncio.TaskGroup() as tasks:
            for cache in (*self._jobs.values(), self._pods, self._events, *([self._nodes] if self._nodes is not None else [])):
                tasks.create_task(cache.run())

    async def wait_synced(self) -> None:
        """Wait until jobs and pods are seen. Nodes and Events may be out of the account's reach; the rest is shown without them."""
        for cache in (*self._jobs.values(), self._pods):
            await cache.wait_synced()

    def lacking(self) -> list[str]:
        """Return the names of definitions whose objects have not been seen yet."""
        seen = (*self._jobs.values(), self._pods, self._events, *([self._nodes] if self._nodes is not None else []))
        return [".".join(filter(None, (cache.resource.plural, cache.resource.group))) for cache in seen if not cache.synced]

    def jobs(self) -> Iterator[JobSeen]:
        for cache in self._jobs.values():
            yield from cache.list()

    @property
    def kinds(self) -> list[str]:
        return list(self._jobs)

    def job(self, kind: str, namespace: str, name: str) -> JobSeen | None:
        return self._jobs[kind].get(namespace, name)

    def job_of_uid(self, uid: str) -> JobSeen | None:
        return next((job for cache in self._jobs.values() for job in cache.by(UID, uid)), None)

    def pods_of(self, job: JobSeen) -> list[PodSeen]:
        """Return the job's pods in its own namespace: a pod of another namespace may name any owner."""
        return sorted(self._pods.by(OWNER, _uid_in(job.key.namespace, job.uid)), key=lambda pod: (pod.type, pod.index, pod.key))

    def pods_on(self, node: str) -> list[PodSeen]:
        return self._pods.by(NODE, node)

    def nodes(self) -> list[NodeSeen]:
        return sorted(self._nodes.list(), key=lambda node: node.name) if self._nodes is not None else []

    def node(self, name: str) -> NodeSeen | None:
        return self._nodes.get("", name) if self._nodes is not None else None

    def events_of(self, job: JobSeen, pods: Iterable[PodSeen]) -> list[EventSeen]:
        """Return the Events of the job and its pods, the newest first, without those of earlier pods of the same name."""
        found = list(self._events.by(ABOUT, _uid_in(job.key.namespace, job.uid)))
        for pod in pods:
            found += (event for event in self._events.by(ABOUT, _place("Pod", *pod.key)) if event.uid in ("", pod.uid))
        return sorted(found, key=lambda event: event.at, reverse=True)[:MOST_EVENTS_OF_A_JOB]

    def _heard_of_job(self, change: ViewChange[JobSeen]) -> None:
        job = change.new or change.old
        if job is None:
            return
        if change.new is None:
            self.job_gone(job.uid)
        elif change.new != change.old:
            self.job_changed(job.uid)

    def _heard_of_pod(self, change: ViewChange[PodSeen]) -> None:
        if change.old == change.new:
            return
        for namespace, uid in {(pod.key[0], uid) for pod in (change.old, change.new) if pod is not None for uid in pod.owners}:
            self._tell_of(namespace, uid)

    def _heard_of_event(self, change: ViewChange[EventSeen]) -> None:
        if change.new is None:
            return
        kind, namespace, name = change.new.about
        if kind == "Pod":
            pod = self._pods.get(namespace, name)
            for uid in pod.owners if pod is not None else ():
                self._tell_of(namespace, uid)
        elif kind in self._jobs:
            self._tell_of(namespace, change.new.uid)

    def _tell_of(self, namespace: str, uid: str) -> None:
        """Tell of the job with this uid, if it is in this namespace: pods and Events may name any uid."""
        job = self.job_of_uid(uid)
        if job is not None and job.key.namespace == namespace:
            self.job_changed(uid)


def _owners(pod: PodSeen) -> list[str]:
    return [_uid_in(pod.key[0], uid) for uid in pod.owners]


def _subjects(event: EventSeen) -> list[str]:
    """Return the index keys of an Event: the uid of its subject, and for a pod also its name, because an Event may lack the uid."""
    found = [_uid_in(event.about[1], event.uid)] if event.uid else []
    return [*found, _place(*event.about)] if event.about[0] == "Pod" else found


def _place(kind: str, namespace: str, name: str) -> str:
    return f"{kind}/{namespace}/{name}"


def _uid_in(namespace: str, uid: str) -> str:
    return f"{namespace}/{uid}"
