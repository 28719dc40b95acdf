"""Observe jobs, pods and nodes through a cache for each. This module decides nothing."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.resources import NODES, PODS
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen
from elastic_training.autoscale.deciding.jobs import ScaledJob, Unscaled
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.jobs import JOBS
from elastic_training.autoscale.watching.projections import job_seen, node_seen, pod_seen

BY_UID, BY_JOB = "uid", "job"


def _uid(job: ScaledJob | Unscaled | None) -> list[str]:
    return [job.uid] if isinstance(job, ScaledJob) else []


def _job_of(pod: PodSeen | None) -> list[str]:
    return [pod.owner] if pod is not None and pod.is_worker and pod.owner else []


class Observer:
    def __init__(self, kube: Kube, *, kinds: Iterable[str], namespace: str | None = None) -> None:
        self._jobs = {kind: Cache(kube, JOBS[kind], project=job_seen, namespace=namespace, indexes={BY_UID: _uid}) for kind in kinds}
        self._pods = Cache(kube, PODS, project=pod_seen, namespace=namespace, indexes={BY_JOB: _job_of})
        # Nodes belong to no namespace: with the rights of one namespace, free room is not known.
        self._nodes = Cache(kube, NODES, project=node_seen) if namespace is None else None

    @property
    def sees_nodes(self) -> bool:
        return self._nodes is not None

    @property
    def is_synced(self) -> bool:
        return all(cache.synced for cache in self._all)

    @property
    def _all(self) -> list[Cache[ScaledJob | Unscaled | None] | Cache[PodSeen | None] | Cache[NodeSeen]]:
        return [*self._jobs.values(), self._pods, *([self._nodes] if self._nodes is not None else [])]

    async def run(self, changed: Callable[[], None], saw: Callable[[ScaledJob], None]) -> None:
        """Keep the caches until cancelled.

        Call `changed` after a change that decisions could depend on, and `saw` with each version of a job that has a scaling policy.
        """
        for jobs in self._jobs.values():
            jobs.subscribe(lambda change: saw(change.new) if isinstance(change.new, ScaledJob) else None)
            jobs.subscribe(lambda change: changed() if change.old != change.new else None)
        self._pods.subscribe(lambda change: changed() if change.old != change.new else None)
        if self._nodes is not None:
            self._nodes.subscribe(lambda change: changed() if change.old != change.new else None)
        async with asyncio.TaskGroup() as tasks:
            for cache in self._all:
                tasks.create_task(cache.run())

    async def wait_synced(self) -> None:
        for cache in self._all:
            await cache.wait_synced()

    def lacking(self) -> list[str]:
        """Return the names of definitions whose objects have not been seen yet."""
        return [".".join(filter(None, (c.resource.plural, c.resource.group))) for c in self._all if not c.synced]

    def jobs(self) -> list[ScaledJob]:
        return [job for cache in self._jobs.values() for job in cache.list() if isinstance(job, ScaledJob)]

    def unscaled(self) -> list[Unscaled]:
        return [job for cache in self._jobs.values() for job in cache.list() if isinstance(job, Unscaled)]

    def job(self, key: JobName) -> ScaledJob | None:
        cache = self._jobs.get(key.kind)
        found = cache.get(key.namespace, key.name) if cache is not None else None
        return found if isinstance(found, ScaledJob) else None

    def job_of_uid(self, uid: str) -> ScaledJob | None:
        return next((job for cache in self._jobs.values() for job in cache.by(BY_UID, uid) if isinstance(job, ScaledJob)), None)

    def pods(self) -> list[PodSeen]:
        """Return the pods, without an owner in another namespace: a pod may name any job as its owner."""
        place = {job.uid: job.key.namespace for job in self.jobs()} | {job.uid: job.namespace for job in self.unscaled()}
        seen = (pod for pod in self._pods.list() if pod is not None)
        return [pod if place.get(pod.owner, pod.key[0]) == pod.key[0] else replace(pod, owner="", is_worker=False) for pod in seen]

    def workers(self, uid: str) -> list[PodSeen]:
        """Return the workers that name the job with this uid as their owner."""
        return [pod for pod in self._pods.by(BY_JOB, uid) if pod is not None]

    def cluster(self) -> tuple[list[NodeSeen], list[PodSeen]]:
        return self.nodes(), self.pods()

    def nodes(self) -> list[NodeSeen]:
        return list(self._nodes.list()) if self._nodes is not None else []
