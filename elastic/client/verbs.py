"""Define what can be done with a job, once: `elastic.Client` and the commands are two faces of these verbs.

A verb changes only the job that was found. The server refuses the uid of another job, which may have got the name a moment ago. A job that
belongs to a TrainJob is changed by its TrainJob. A verb sends requests that each have a limit; the caller bounds the waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from elastic.api.kinds import WORKER, Kind, as_owned
from elastic.api.names import JOB_NAME, NODES, REPLICA_INDEX, REPLICA_TYPE
from elastic.api.owners import controller_uid, is_owned_by
from elastic.api.template import default_container
from elastic.client import errors
from elastic.client.bare_train_jobs import state_of
from elastic.client.summary import is_number, rank_of, summary
from elastic.kube.answers import WatchEvent, WatchType
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import FollowedJob, resource_of
from elastic.kube.lines import Lines
from elastic.kube.resources import PODS, TRAIN_JOBS, Object, Resource

LOOK_EVERY_S = 0.5
WATCH_S = 30
"""Seconds after which a watch begins again, so that a server that went away is noticed."""
WATCH_SILENCE_S = WATCH_S + 30
NAMED = 3
GONE, CONFLICT, INVALID = 404, 409, 422


@dataclass(frozen=True, slots=True)
class Found:
    kind: Kind
    object: Object
    bare: Object | None = None
    """The TrainJob itself if no job of ours belongs to it; `object` is its outline then."""
    train_job: Object | None = None
    """The TrainJob that the job belongs to, if `with_train_jobs` has read it."""

    @property
    def key(self) -> FollowedJob:
        metadata = self.object["metadata"]
        return FollowedJob(self.kind, metadata["namespace"], metadata["name"], metadata["uid"])

    @property
    def title(self) -> str:
        return f"{self.kind.title} {self.object['metadata']['name']}"

    @property
    def word(self) -> str:
        """Return the kind as a user types it."""
        return self.kind.title.lower() if self.kind.role else self.kind.singular


async def find(kube: Kube, kind: Kind, namespace: str, name: str) -> Found:
    """Return the job of this kind and name."""
    found = await kube.get(resource_of(kind), name, namespace=namespace)
    return Found(as_owned(kind, found["metadata"]), found)


async def pods_of(kube: Kube, job: Found) -> list[Object]:
    """Return the job's pods by type and index, without pods of a former job of its name."""
    metadata = job.object["metadata"]
    listed = (await kube.list(PODS, namespace=metadata["namespace"], labels=f"{JOB_NAME}={metadata['name']}")).items
    own = [pod for pod in listed if is_owned_by(pod["metadata"], metadata["uid"])]
    return sorted(own, key=_place)


def _place(pod: Object) -> tuple[str, int, str]:
    labels = pod["metadata"].get("labels") or {}
    index = str(labels.get(REPLICA_INDEX, ""))
    return str(labels.get(REPLICA_TYPE, "")), int(index) if is_number(index) else 0, pod["metadata"]["name"]


def worker(job: Found, pods: Sequence[Object], *, index: int | None, rank: int | None) -> Object:
    """Return the pod of the worker with this index or rank."""
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if rank is not None and rank_of(pod, job.object) == rank:
            return pod
        if index is not None and labels.get(REPLICA_TYPE) == WORKER.lower() and labels.get(REPLICA_INDEX) == str(index):
            return pod
    which = f"worker {index}" if index is not None else f"rank {rank}"
    ranks = {pod["metadata"]["name"]: rank_of(pod, job.object) for pod in pods}
    hint = "pods: " + (", ".join(name if known is None else f"{name} (rank {known})" for name, known in ranks.items()) or "none")
    if rank is not None and all(known is None for known in ranks.values()):
        hint = "its ranks are known to its rendezvous only; name the worker by its index"
    raise errors.NotFound(f"{job.title} has no {which}; {hint}")


async def scale(kube: Kube, job: Found, workers: int) -> None:
    """Change how many workers a job has. Its spec says within which bounds."""
    if (told := summary(job.kind, job.object)).is_over:
        raise errors.Refused(f"{job.title} has ended ({told.state.lower()}); a job that has ended cannot be scaled")
    if job.kind.role:
        _check_nodes(job, workers)
        await _patch(kube, job, {"metadata": {"annotations": {NODES: str(workers)}}})
        return
    if WORKER not in ((job.object.get("spec") or {}).get(job.kind.replica_key) or {}):
        raise errors.Refused(f"{job.title} has no replica type {WORKER}, and so cannot be scaled")
    await _patch(kube, job, {"spec": {"replicas": workers}}, subresource="scale")


def _check_nodes(job: Found, workers: int) -> None:
    """Raise an error if a TrainJob may not have this number of nodes."""
    if job.bare is not None:
        state, words = state_of(job.bare)
        raise errors.Refused(f"{job.title} has no nodes yet; it is {state.lower()}" + (f": {words}" if words else ""))
    policy = job.object["spec"].get("elasticPolicy") or {}
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    if least is None or most is None:
        raise errors.Refused(f"{job.title} has a fixed number of nodes; only nodes with the policy torch can come and go")
    if not least <= workers <= most:
        allowed = f"{least} to {most} nodes" if least < most else f"only {least} nodes"
        hint = "its annotations elastic-training/min-nodes and elastic-training/max-nodes set the bounds"
        raise errors.OutOfBounds(f"{job.title} may have {allowed}; {hint}")


async def set_suspended(kube: Kube, job: Found, *, is_suspended: bool) -> None:
    """Suspend a job, which frees its resources, or let it continue from its checkpoint."""
    if is_suspended and (told := summary(job.kind, job.object)).is_over:
        raise errors.Refused(f"{job.title} has ended ({told.state.lower()})")
    await _patch(kube, job, {"spec": {"suspend": is_suspended} if job.kind.role else {"runPolicy": {"suspend": is_suspended}}})


async def _patch(kube: Kube, job: Found, body: Object, *, subresource: str | None = None) -> None:
    resource, uid = _changed(job)
    name, namespace = job.key.name, job.key.namespace
    own = {**body, "metadata": {**body.get("metadata", {}), "uid": uid}}
    try:
        await kube.patch(resource, name, own, namespace=namespace, subresource=subresource)
    except KubeError as error:
        if error.code in (GONE, CONFLICT, INVALID) and not await _has(kube, resource, name, namespace=namespace, uid=uid):
            words = f"{job.title} was deleted meanwhile, and another job may have its name; look at it first"
            raise errors.JobFailed(words, name=name) from error
        raise


def _changed(job: Found) -> tuple[Resource, str]:
    """Return the resource and the uid of the object that changes a job: its TrainJob if it belongs to one."""
    if not job.kind.role:
        return resource_of(job.kind), job.key.uid
    if job.bare is not None:
        return TRAIN_JOBS, job.key.uid
    return TRAIN_JOBS, controller_uid(job.object["metadata"])


async def delete(kube: Kube, job: Found) -> None:
    """Delete a job; its pods follow. It is no error if it is gone, or if another job has its name by now."""
    resource, uid = _changed(job)
    try:
        await kube.delete(resource, job.key.name, namespace=job.key.namespace, propagation="Background", uid=uid)
    except KubeError as error:
        if error.code not in (GONE, CONFLICT):
            raise


async def until_gone(kube: Kube, job: Found, *, and_pods: bool = False, waits: Callable[[str], None] = lambda words: None) -> None:
    """Wait until a job is gone. At each look, `waits` gets the names of the remaining objects."""
    while words := await _left(kube, job, and_pods=and_pods):  # the caller's time-out bounds it
        waits(words)
        await asyncio.sleep(LOOK_EVERY_S)


async def _left(kube: Kube, job: Found, *, and_pods: bool) -> str:
    """Return the names of the remaining objects, or nothing."""
    resource = resource_of(job.kind) if job.bare is None else TRAIN_JOBS
    if await _has(kube, resource, job.key.name, namespace=job.key.namespace, uid=job.key.uid):
        return job.title
    pods = [pod["metadata"]["name"] for pod in (await pods_of(kube, job) if and_pods else ())]
    return ", ".join(pods[:NAMED]) + (f" and {len(pods) - NAMED} more" if len(pods) > NAMED else "")


async def _has(kube: Kube, resource: Resource, name: str, *, namespace: str, uid: str) -> bool:
    there = await kube.find(resource, name, namespace=namespace)
    return there is not None and bool(there["metadata"]["uid"] == uid)


def replaced(name: str) -> errors.JobFailed:
    """Return the error of a job whose name another job has now."""
    return errors.JobFailed(f"{name} was deleted, and another of its name was made", name=name)


async def changes(kube: Kube, job: Found) -> AsyncGenerator[Object, None]:
    """Yield a job as it was found, and again at each change, until the caller has seen enough or the job is gone.

    The job is asked for again if a watch ends or breaks, so a server that stays away is told by that request.
    """
    key, current = job.key, job.object
    while True:
        yield current
        version = current["metadata"].get("resourceVersion")
        fields = f"metadata.name={key.name}"
        events = kube.watch(key.resource, namespace=key.namespace, fields=fields, resource_version=version, timeout_s=WATCH_S)
        async with contextlib.aclosing(events):
            while (seen := await _next(events)) is not None:
                if seen.type is WatchType.DELETED:
                    raise errors.JobFailed(f"{key.name} was deleted", name=key.name)
                if seen.type is not WatchType.BOOKMARK:
                    if seen.object["metadata"].get("uid") != key.uid:
                        raise replaced(key.name)
                    yield seen.object
        await asyncio.sleep(LOOK_EVERY_S)
        current = await kube.get(key.resource, key.name, namespace=key.namespace)
        if current["metadata"]["uid"] != key.uid:
            raise replaced(key.name)


async def _next(events: AsyncIterator[WatchEvent]) -> WatchEvent | None:
    """Return the next event; None if the watch has ended or is broken, for example because its version is too old."""
    with contextlib.suppress(StopAsyncIteration, KubeError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(WATCH_SILENCE_S):
            return await anext(events)
    return None


async def log_of(
    kube: Kube, pod: Object, kind: Kind, *, tail: int | None = None, previous: bool = False
) -> AsyncGenerator[list[str], None]:
    """Yield the lines that the training container of a pod has printed, as they come. A pod that has not started has none.

    A line over which another one is written, as of a progress bar, is left out.
    """
    if pod["status"].get("phase") == "Pending":
        return
    metadata, container = pod["metadata"], default_container(pod, kind)["name"]
    lines, kept = Lines(), deque[str](maxlen=tail)
    log = kube.logs(metadata["name"], namespace=metadata["namespace"], container=container, previous=previous, tail_lines=tail)
    async with contextlib.aclosing(log):
        async for chunk in log:
            kept.extend(line.text for line in lines.of(chunk) if not line.is_passing)
            if tail is None:
                yield list(kept)
                kept.clear()
    kept.extend(line.text for line in lines.last())
    yield list(kept)
