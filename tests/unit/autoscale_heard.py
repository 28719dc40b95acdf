"""Read what the autoscaler hears of a job's training, without servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from autoscale_cluster import pod, state

from elastic.api.scaling import ProgressSource
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic_training.autoscale.deciding.jobs import ScaledJob
from elastic_training.autoscale.watching.sources import Report, Sources

PATIENCE_S = 30.0


class Logs:
    """The log of a pod, chunk by chunk. Then nothing more comes."""

    def __init__(self, *chunks: bytes, error: KubeError | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.asked: list[dict[str, Any]] = []

    def is_read(self) -> bool:
        return not self.chunks

    async def logs(self, name: str, **asked: Any) -> AsyncIterator[bytes]:
        self.asked.append({"name": name, **asked})
        if self.error is not None:
            raise self.error
        for chunk in self.chunks:
            yield chunk
        self.chunks = ()
        await asyncio.Event().wait()


def job(source: ProgressSource) -> ScaledJob:
    return replace(state("one", 2).seen, progress=source, container="pytorch")


async def heard(
    logs: Logs | Kube, seen: ScaledJob, words: str = "", *, through_api: bool = False, **of_pod: Any
) -> tuple[list[Report], str]:
    """Return a source's first report, or all its reports until its trouble has these words, and the trouble."""
    reports: list[Report] = []
    is_heard = asyncio.Event()

    def hear(_: ScaledJob, report: Report) -> None:
        reports.append(report)
        is_heard.set()

    found = Sources(logs, hear, pages_through_api=through_api)  # type: ignore[arg-type]
    found.look([(seen, replace(pod("one-0", on="n", owner=seen.uid, index=0), **of_pod))])
    async with asyncio.timeout(PATIENCE_S):
        if not words:
            await is_heard.wait()
        while words not in found.trouble(seen.key) or (isinstance(logs, Logs) and not logs.is_read()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    trouble = found.trouble(seen.key)
    await found.close()
    return reports, trouble
