"""Make the changes that a user asks for, if the dashboard was started with --allow-changes.

A user may change the number of workers, suspend a job, and on the laptop reclaim a node. The API server checks the caller's own rights, and
the control plane does the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Meta

from elastic.api.counting import counted
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import TRAIN_JOBS, Resource
from elastic_training.autoscale.jobs import JOBS
from elastic_training.dashboard.watching.seen import JobSeen, NodeSeen

log = logging.getLogger(__name__)
MOST_WORKERS = 100_000
RECLAIM_S = 900.0
NOTICE_S = 120
"""From the notice to the loss of a node, as on AWS."""
MOST_RECLAIMS = 8


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workers: Annotated[int, Meta(ge=0, le=MOST_WORKERS)]


class Suspend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suspended: bool


async def scale(kube: Kube, job: JobSeen, body: bytes) -> web.Response:
    wanted = msgspec.json.decode(body, type=Scale).workers
    key = job.key
    spec = {"spec": {"replicas": wanted}}
    return await _patched(kube, job, spec, subresource="scale", words=f"{key.name} is to have {counted(wanted, 'worker')}")


async def suspend(kube: Kube, job: JobSeen, body: bytes) -> web.Response:
    is_suspended = msgspec.json.decode(body, type=Suspend).suspended
    words = f"{job.key.name} is {'suspended' if is_suspended else 'resumed'}"
    if job.summary.kind.role:
        # The job of a TrainJob follows its TrainJob.
        return await _patched(kube, job, {"spec": {"suspend": is_suspended}}, words=words, resource=TRAIN_JOBS)
    return await _patched(kube, job, {"spec": {"runPolicy": {"suspend": is_suspended}}}, words=words)


def refused(error: Exception) -> web.Response:
    """Return our answer about the API server's refusal, or about its silence."""
    if isinstance(error, KubeError):
        return web.json_response({"error": error.message}, status=error.code if 400 <= error.code < 500 else 502)
    return web.json_response({"error": "the API server could not be reached"}, status=502)


async def _patched(
    kube: Kube, job: JobSeen, body: object, *, words: str, subresource: str | None = None, resource: Resource | None = None
) -> web.Response:
    key = job.key
    try:
        await kube.patch(resource or JOBS[key.kind], key.name, body, namespace=key.namespace, subresource=subresource)
    except (KubeError, aiohttp.ClientError, TimeoutError) as error:
        return refused(error)
    log.info("a user changed a job", extra={**key.fields(), "change": words})
    return web.json_response({"done": words})


class Reclaims:
    """Play the reclaim of a node by a command (`elastic node reclaim --seconds 120 NODE`), because it outlasts the request."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._under_way: dict[str, asyncio.Task[None]] = {}

    @property
    def is_possible(self) -> bool:
        return bool(self._command)

    async def begin(self, node: NodeSeen) -> web.Response:
        if node.name in self._under_way:
            return web.json_response({"error": f"node {node.name} is being reclaimed already"}, status=409)
        if len(self._under_way) >= MOST_RECLAIMS:
            return web.json_response({"error": f"{MOST_RECLAIMS} nodes are being reclaimed; wait for one of them"}, status=429)
        task = self._under_way[node.name] = asyncio.create_task(self._play(node.name))
        task.add_done_callback(lambda done: self._under_way.pop(node.name, None))
        return web.json_response({"done": f"node {node.name} is given notice"})

    async def _play(self, node: str) -> None:
        command = [*self._command, "--seconds", str(NOTICE_S), node]
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(RECLAIM_S):
                if status := await process.wait():
                    log.warning("a node could not be reclaimed", extra={"node": node, "status": status})
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
