"""Keep the jobs of TrainJobs: watch TrainJobs and runtimes if the API server has them, plan, create and change jobs, write the status."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime

from elastic.api.kinds import INITIALIZERS, OWNED
from elastic.api.owners import controller_uid
from elastic.api.trainer.modes import SELECTOR, Mode
from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CLUSTER_TRAINING_RUNTIMES, PERSISTENT_VOLUME_CLAIMS, TRAIN_JOBS, TRAINING_RUNTIMES, Object
from elastic.membership.training import TrainingProgress
from elastic.runtime.fence import is_lapse
from elastic.runtime.workqueue import WorkQueue
from elastic.runtime.writers import Writer
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.actions import warning
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.deciding.trainjobs.claims import CLAIM
from elastic_training.controller.deciding.trainjobs.initializers import name as initializer_name
from elastic_training.controller.deciding.trainjobs.lowering import runtime_key
from elastic_training.controller.deciding.trainjobs.nodes import kind_of
from elastic_training.controller.deciding.trainjobs.plan import TrainJobPlan, TrainJobView, plan
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.watching.fed_view import FedView

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 10.0
"""Seconds until the API server is asked again whether it has TrainJobs."""
WORKERS = 4
PYTORCH, MPI = (JOBS[kind.name] for kind in OWNED)
CREATED = {PYTORCH.kind: PYTORCH, MPI.kind: MPI, CLAIM: PERSISTENT_VOLUME_CLAIMS}
BY_RUNTIME = "runtime"
Key = tuple[str, str]
"""Namespace and name of a TrainJob, and of its job."""


class TrainJobs:
    def __init__(
        self,
        kube: Kube,
        writer: Writer,
        jobs: Sequence[FedView],
        *,
        mode: Mode,
        clock: Callable[[], float],
        progress: Callable[[], AsyncIterator[TrainingProgress]] | None = None,
        gang_scheduler: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take the views of PyTorchJobs, and of MPIJobs if they are served. Somebody else feeds these views.

        progress: the rendezvous server's stream.
        """
        self._kube, self._writer, self._jobs, self._now, self._mode = kube, writer, jobs, now, mode
        self._events = EventRecorder(writer)
        self._queue: WorkQueue[Key] = WorkQueue(clock=clock)
        # TrainJobs of another controller are not even watched.
        labels = SELECTOR if mode is Mode.BESIDE else None
        self._train_jobs = Cache(kube, TRAIN_JOBS, project=_read, labels=labels, indexes={BY_RUNTIME: _runtime})
        self._runtimes = {r.kind: Cache(kube, r, project=_read) for r in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)}
        self._clock, self._stream, self._gang_scheduler = clock, progress, gang_scheduler
        self._owned: dict[str, Key] = {}
        """The TrainJob of each job, by the job's uid."""
        self._progress: dict[str, TrainingProgress] = {}
        """The newest progress of these jobs."""
        self._is_working = False

    async def run(self) -> None:
        """Watch until cancelled, from when the API server has TrainJobs."""
        while not await self._are_served():  # noqa: ASYNC110 - a definition that is created wakes nobody
            await asyncio.sleep(LOOK_AGAIN_S)
        self._train_jobs.subscribe(self._changed)
        for jobs in self._jobs:
            jobs.subscribe(self._job_changed)
        for kind, runtimes in self._runtimes.items():
            runtimes.subscribe(self._telling(kind))
        async with asyncio.TaskGroup() as tasks:
            for cache in (self._train_jobs, *self._runtimes.values()):
                tasks.create_task(cache.run())

    async def work(self) -> None:
        """Work until cancelled. Nothing is decided before the whole view exists."""
        for view in (self._train_jobs, *self._runtimes.values(), *self._jobs):
            await view.wait_synced()
        self._is_working = True
        try:
            for found in self._train_jobs.list():
                key = (found["metadata"]["namespace"], found["metadata"]["name"])
                if (named := self._named(found)) is not None:
                    self._owned[named["metadata"]["uid"]] = key
                self._queue.add(key)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(WORKERS):
                    tasks.create_task(self._worker())
                if self._stream is not None:
                    tasks.create_task(self._listen(self._stream))
        finally:
            self._is_working = False

    async def _are_served(self) -> bool:
        try:
            for resource in (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
                await self._kube.request("GET", resource.path(), params={"limit": "1"})
        except KubeError as error:
            log.debug("TrainJobs cannot be watched", extra={"error": str(error)})
            return False
        return True

    def _changed(self, change: ViewChange[Object]) -> None:
        if change.new is None and change.old is not None:
            self._events.forget(change.old["metadata"]["uid"])
        self._look_at(change.key)

    def _job_changed(self, change: ViewChange[Object]) -> None:
        if change.new is None and change.old is not None:
            uid = change.old["metadata"]["uid"]
            self._owned.pop(uid, None)
            self._progress.pop(uid, None)
        for key in _train_jobs_of(change.key):
            if self._train_jobs.get(*key) is not None:
                if change.new is not None and key == change.key:
                    self._owned[change.new["metadata"]["uid"]] = key
                self._look_at(key)

    async def _listen(self, stream: Callable[[], AsyncIterator[TrainingProgress]]) -> None:
        """Keep the newest progress of the jobs of TrainJobs. A message that a job is forgotten may have its last one."""
        async for heard in stream():
            if (not heard.forgotten or heard.percent is not None) and (key := self._owned.get(heard.job)) is not None:
                self._progress[heard.job] = heard
                self._look_at(key)

    def _telling(self, kind: str) -> Callable[[ViewChange[Object]], None]:
        def tell(change: ViewChange[Object]) -> None:
            for found in self._train_jobs.by(BY_RUNTIME, "/".join((kind, *change.key))):
                self._look_at((found["metadata"]["namespace"], found["metadata"]["name"]))

        return tell

    def _look_at(self, key: Key) -> None:
        if self._is_working:
            self._queue.add(key)

    async def _worker(self) -> None:
        while True:
            key, _ = await self._queue.take()
            failed = True
            try:
                failed = not await self._reconcile(key)
            except Exception:
                log.exception("reconcile failed", extra=_fields(key))
            finally:
                self._queue.done(key, failed=failed)

    async def _reconcile(self, key: Key) -> bool:
        """Look once at a TrainJob and do what follows. Return False if it must be repeated soon."""
        train_job = self._train_jobs.get(*key)
        if train_job is None:
            self._queue.forget(key)
            return True
        now = self._now().replace(microsecond=0)
        try:
            named = self._named(train_job)
            runtime = await self._runtime(runtime_key(train_job)) if named is None else None
            progress = self._progress.get(named["metadata"]["uid"]) if named is not None else None
            jobs = ((step, self._jobs[0].get(key[0], initializer_name(key[1], step))) for step in INITIALIZERS)
            there = {step: job for step, job in jobs if job is not None}
            serves_mpi = len(self._jobs) > 1
            planned = plan(TrainJobView(train_job, runtime, named, now, progress, there, self._gang_scheduler, serves_mpi, self._mode))
            await self._carry_out(key, train_job, named, planned, now=now)
            if planned.look_again_at is not None:
                self._queue.add_at(key, self._clock() + (planned.look_again_at - now).total_seconds())
        except KubeError as error:
            is_lost_race = error.reason == "Conflict"
            level = logging.DEBUG if is_lost_race or is_lapse(error) else logging.WARNING
            log.log(level, "reconcile failed", extra=_fields(key) | {"error": str(error)})
            return False
        return True

    def _named(self, train_job: Object) -> Object | None:
        """Return the job that has the TrainJob's name. If there are several, the TrainJob's own one comes first."""
        metadata = train_job["metadata"]
        there = [job for view in self._jobs if (job := view.get(metadata["namespace"], metadata["name"])) is not None]
        return min(there, key=lambda job: controller_uid(job["metadata"]) != metadata["uid"], default=None)

    async def look_up(self, kind: str, namespace: str, name: str) -> RuntimeSight:
        """Return a runtime for the webhook, which asks also before this process works."""
        found = await self._runtime((kind, namespace, name))
        return RuntimeSight(found, is_known=True, gang_scheduler=self._gang_scheduler, serves_mpi=len(self._jobs) > 1)

    async def _runtime(self, key: tuple[str, str, str]) -> Object | None:
        """Return the runtime. If it was created a moment before its TrainJob, it may not be in view yet."""
        kind, namespace, name = key
        view = self._runtimes.get(kind)
        if view is None or not name:
            return None
        if (found := view.get(namespace, name)) is not None:
            return found
        try:
            return await self._kube.get(view.resource, name, namespace=namespace or None)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    async def _carry_out(self, key: Key, train_job: Object, named: Object | None, planned: TrainJobPlan, *, now: datetime) -> None:
        namespace, name = key
        about = train_job | {"apiVersion": TRAIN_JOBS.api_version, "kind": TRAIN_JOBS.kind}
        for item in planned.create:
            try:
                await self._writer.create(CREATED[item["kind"]], item, namespace=namespace)
            except KubeError as error:
                # If a job exists, the next look sees whose it is.
                if error.reason != "AlreadyExists" or (item["kind"] == CLAIM and not await self._is_usable(item, about, now=now)):
                    raise
        if planned.change is not None and named is not None:
            await self._writer.patch(JOBS[kind_of(named).name], name, _at(named, planned.change), namespace=namespace)
        for job, change in planned.initializers:
            await self._writer.patch(PYTORCH, job["metadata"]["name"], _at(job, change), namespace=namespace)
        for job in planned.delete:
            await self._delete(job)
        if planned.status is not None:
            body = _at(train_job, {"status": planned.status})
            await self._writer.patch(TRAIN_JOBS, name, body, namespace=namespace, subresource="status")
        await self._events.tell(about, planned.news, now=now)

    async def _is_usable(self, claim: Object, about: Object, *, now: datetime) -> bool:
        """Return whether a claim that exists is the TrainJob's, or may be of somebody else because it is retained. An Event says if not."""
        metadata = claim["metadata"]
        if "ownerReferences" not in metadata:
            return True
        there = await self._writer.get(PERSISTENT_VOLUME_CLAIMS, metadata["name"], namespace=metadata["namespace"])
        if controller_uid(there["metadata"]) == controller_uid(metadata):
            return True
        words = f"PersistentVolumeClaim {metadata['name']} exists and does not belong to this TrainJob; delete it"
        await self._events.tell(
            about, [warning("TrainJobResourcesCreationFailed", f"{words}, or retain it in volumeClaimPolicies")], now=now
        )
        return False

    async def _delete(self, job: Object) -> None:
        metadata = job["metadata"]
        try:
            await self._writer.delete(
                PYTORCH, metadata["name"], namespace=metadata["namespace"], propagation="Background", uid=metadata["uid"]
            )
        except KubeError as error:
            if error.code != 404:
                raise


def _at(seen: Object, change: Object) -> Object:
    """Return the change as one of exactly this version, so that it never undoes what we have not seen."""
    metadata = {**(change.get("metadata") or {}), "resourceVersion": seen["metadata"]["resourceVersion"]}
    return change | {"metadata": metadata}


def _read(raw: Object) -> Object:
    raw["metadata"].pop("managedFields", None)
    return raw


def _train_jobs_of(key: Key) -> Iterator[Key]:
    """Yield the TrainJobs whose jobs may have this name."""
    yield key
    namespace, name = key
    yield from ((namespace, name.removesuffix(f"-{step}")) for step in INITIALIZERS if name.endswith(f"-{step}"))


def _runtime(train_job: Object) -> list[str]:
    return ["/".join(runtime_key(train_job))]


def _fields(key: Key) -> dict[str, str]:
    return {"kind": TRAIN_JOBS.kind, "namespace": key[0], "job": key[1]}
