"""Give programs a handle of a job: its status, its logs, the result of its function, and the changes that a user may make.

The verbs are coroutines. A handle runs them in the thread of its cluster, and waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from elastic.api.counting import counted
from elastic.api.kinds import Kind
from elastic.api.names import REPLICA_INDEX
from elastic.client import errors, page, verbs
from elastic.client.cluster import WITHIN_S, Cluster
from elastic.client.explanation import explained
from elastic.client.program import MARK, result_in
from elastic.client.sample import Sample
from elastic.client.summary import Summary, ranks, summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube

T = TypeVar("T")
LAST_LINES = 200
GONE_S = 60.0


class Job:
    """One job of a cluster. Each property asks the API server again. With a uid, another job of the same name is not this one."""

    def __init__(self, cluster: Cluster, kind: Kind, name: str, uid: str | None = None) -> None:
        self._cluster, self._uid = cluster, uid
        self.kind, self.namespace, self.name = kind, cluster.namespace, name
        self._title = f"{kind.title} {name}"

    def __repr__(self) -> str:
        return f"<{self.kind.title} {self.namespace}/{self.name}>"

    def _do(self, doing: str, act: Callable[[Kube, Found], Awaitable[T]], *within_s: float | None) -> T:
        """Run a verb on this job, within the limit of a call unless another one is given."""

        async def done(kube: Kube) -> T:
            return await act(kube, await self._found(kube))

        return self._cluster.ask(doing, done, *within_s)

    async def _found(self, kube: Kube) -> Found:
        found = await verbs.find(kube, self.kind, self.namespace, self.name)
        if self._uid not in (None, found.key.uid):
            raise verbs.replaced(self.name)
        return found

    def _repr_html_(self) -> str:
        return page.as_html(*self._do(self._title, self._view))

    @property
    def object(self) -> dict[str, Any]:
        """The job as the API server has it."""
        return self._cluster.ask(self._title, self._found).object

    @property
    def status(self) -> Summary:
        return summary(self.kind, self.object)

    @property
    def sample(self) -> Sample | None:
        """How far training is now: step, speed, loss and world, as the dashboard has heard; None if it has heard nothing."""
        return self._do(self._title, lambda kube, job: self._cluster.sample(job.key.uid))

    async def _known_sample(self, job: Found) -> Sample | None:
        """Return the sample for a view that shows more than it: a dashboard that is down costs the sample only."""
        with contextlib.suppress(errors.Unreachable):
            return await self._cluster.sample(job.key.uid)
        return None

    def explain(self) -> str:
        """Say why the job has its size, what it waits for, and what the last change cost."""
        return self._do(self._title, self._view)[1]

    async def _view(self, kube: Kube, job: Found) -> tuple[Summary, str, Sample | None]:
        """Return the job in a few words, with its explanation and its progress."""
        sample, pods, told = await self._known_sample(job), await verbs.pods_of(kube, job), summary(job.kind, job.object)
        lines = explained(told, pods, job.object.get("spec") or {}, datetime.now(UTC), progress=sample.progress if sample else "")
        return told, "\n".join(lines), sample

    def pods(self) -> list[dict[str, Any]]:
        """Return the job's pods as the API server has them, by type and index."""
        return self._do(f"the pods of {self.name}", verbs.pods_of)

    def watch(self, timeout: float | None = None) -> Iterator[Summary]:
        """Yield the status now, and at each change until the job has ended."""
        return (told for told in self._cluster.each(self._title, lambda kube: self._changes(kube, timeout)) if told is not None)

    async def _changes(self, kube: Kube, timeout: float | None) -> AsyncGenerator[Summary, None]:
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout
        async with asyncio.timeout(WITHIN_S):
            job = await self._found(kube)
        told: Summary | None = None
        async with contextlib.aclosing(verbs.changes(kube, job)) as changes:
            try:
                while told is None or not told.is_over:
                    async with asyncio.timeout_at(end) as limit:
                        job = Found(job.kind, await anext(changes))
                    if (now := summary(job.kind, job.object)) != told:
                        told = now
                        yield told
                return
            except TimeoutError:
                if not limit.expired():
                    raise
        async with asyncio.timeout(WITHIN_S):
            told, why, _ = await self._view(kube, job)
        raise errors.TimedOut(f"{self.name} is {told.state.lower()} after {timeout:g} s: {why}")

    def wait(self, until: str = "over", timeout: float | None = None) -> Summary:
        """Wait until the job is `running` or `over`. A job that failed raises JobFailed with the first error of its workers."""
        if until not in ("running", "over"):
            raise ValueError(f"until is {until!r}; it may be 'running' or 'over'")
        for told in self.watch(timeout):
            if told.state == "Failed":
                raise errors.JobFailed(told.message, name=self.name)
            if told.is_over or (until == "running" and told.state == "Running"):
                return told
        raise AssertionError("watch ends with what is over")

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the job has succeeded, and return the submitted function's result on rank 0."""
        self.wait(timeout=timeout)
        return self._do(f"the result of {self.name}", self._result, None)

    async def _result(self, kube: Kube, job: Found) -> Any:
        pods, first = await verbs.pods_of(kube, job), ranks(job.object).get(0)
        pods.sort(key=lambda pod: pod["metadata"]["labels"].get(REPLICA_INDEX) != str(first))
        for pod in pods:
            kept = deque[str](maxlen=LAST_LINES)
            async for lines in verbs.log_of(kube, pod, job.kind, tail=LAST_LINES):
                kept.extend(lines)
            try:
                return result_in("\n".join(kept))
            except KeyError:
                continue
            except (ValueError, RecursionError) as error:
                raise errors.NoResult(f"the log of {pod['metadata']['name']} has {MARK!r}, but behind it no JSON: {error}") from error
        raise errors.NoResult(
            f"no log of {self.name} has a line {MARK!r}: its pods are gone, or it runs a script, which has to save what it makes"
        )

    def logs(self, *, worker: int | None = None, rank: int | None = None, tail: int | None = None) -> Iterator[str]:
        """Yield the lines that the training containers have printed: of one worker, or of all, each line with its pod."""
        for lines in self._cluster.each(f"the logs of {self.name}", lambda kube: self._lines(kube, worker, rank, tail)):
            yield from lines or ()

    async def _lines(self, kube: Kube, worker: int | None, rank: int | None, tail: int | None) -> AsyncGenerator[list[str], None]:
        async with asyncio.timeout(WITHIN_S):
            job = await self._found(kube)
            pods = await verbs.pods_of(kube, job)
        if worker is not None:
            pods = [verbs.worker(job, pods, index=worker, rank=None)]
        if rank is not None:
            pods = [verbs.worker(job, pods, index=None, rank=rank)]
        for pod in pods:
            prefix = "" if len(pods) == 1 else f"{pod['metadata']['name']} | "
            async with contextlib.aclosing(verbs.log_of(kube, pod, job.kind, tail=tail)) as log:
                async for lines in log:
                    yield [prefix + line for line in lines]

    def scale(self, workers: int) -> None:
        """Change the number of workers, within the bounds of the job's spec."""
        self._do(f"scaling {self.name} to {counted(workers, 'worker')}", lambda kube, job: verbs.scale(kube, job, workers))

    def suspend(self) -> None:
        """Stop the job and free its resources."""
        self._do(f"suspending {self.name}", lambda kube, job: verbs.set_suspended(kube, job, is_suspended=True))

    def resume(self) -> None:
        """Start the job again, from its checkpoint."""
        self._do(f"resuming {self.name}", lambda kube, job: verbs.set_suspended(kube, job, is_suspended=False))

    def delete(self, timeout: float = GONE_S) -> None:
        """Delete the job with its pods, and return when they are gone."""

        async def deleted(kube: Kube, job: Found) -> None:
            await verbs.delete(kube, job)
            try:
                async with asyncio.timeout(timeout) as limit:
                    await verbs.until_gone(kube, job, and_pods=True)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise errors.TimedOut(f"{self.name} is not gone after {timeout:g} s") from error

        self._do(f"deleting {self.name}", deleted, timeout + WITHIN_S)

    def show(self, timeout: float | None = None) -> None:
        """Show a table that follows the job until it has ended: live in a notebook, a line for each change elsewhere."""
        self.sample  # noqa: B018  # a dashboard that was named and does not answer is said now
        following = self._cluster.each(self._title, lambda kube: self._changes(kube, timeout), page.LOOK_EVERY_S)
        with contextlib.closing(following) as changes:
            page.show(changes, lambda: self._do(self._title, lambda kube, job: self._known_sample(job)))
