"""Reads the progress of jobs whose script reports none: one follow of rank 0's log, or one page of its pod now and then.

Each source costs a bounded amount whatever the pod says: lines and pages are cut, a silent one is given up and tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aiohttp

from autoscale.deciding.cluster import PodSeen
from autoscale.deciding.jobs import JobSeen
from autoscale.figures import JobKey
from elastic.api.log_pattern import Part, numbers, parts_of
from elastic.api.scaling import PrometheusProgress
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError

log = logging.getLogger(__name__)
MOST_SOURCES = 512
LONGEST_LINE = 4096
LONGEST_PAGE = 1024 * 1024
PAGE_EVERY_S = 5.0
PAGE_S = 3.0
LEAST_GAP_S = 1.0
"""Between two reports of one source."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
MOST_STEP = 2**53


@dataclass(frozen=True, slots=True)
class Report:
    """What a source said of a job."""

    step: int
    samples: float | None = None


Heard = Callable[[JobSeen, Report], None]


@dataclass(slots=True)
class _Source:
    seen: JobSeen
    pod: PodSeen
    task: asyncio.Task[None]
    trouble: str = ""


class Sources:
    def __init__(self, kube: Kube, heard: Heard) -> None:
        self._kube = kube
        self._heard = heard
        self._sources: dict[JobKey, _Source] = {}
        self._session: aiohttp.ClientSession | None = None

    def look(self, wanted: Iterable[tuple[JobSeen, PodSeen]]) -> None:
        """Reads from these pods and from no others. Of too many jobs the last ones wait."""
        chosen = {seen.key: (seen, pod) for seen, pod in list(wanted)[:MOST_SOURCES]}
        for key, source in list(self._sources.items()):
            now = chosen.get(key)
            if now is None or now[1].uid != source.pod.uid or now[0].progress != source.seen.progress:
                source.task.cancel()
                del self._sources[key]
        for key, (seen, pod) in chosen.items():
            if key not in self._sources:
                self._sources[key] = _Source(seen, pod, asyncio.create_task(self._read(seen, pod)))

    def trouble(self, key: JobKey) -> str:
        """Why nothing is heard of this job, in words."""
        source = self._sources.get(key)
        return source.trouble if source is not None else ""

    async def close(self) -> None:
        self.look(())
        if self._session is not None:
            await self._session.close()

    async def _read(self, seen: JobSeen, pod: PodSeen) -> None:
        """Until cancelled; what fails is tried again, later each time."""
        assert seen.progress is not None
        pause = FIRST_PAUSE_S
        while True:
            try:
                if seen.progress.prometheus is not None:
                    await self._follow_page(seen, pod, seen.progress.prometheus)
                elif seen.progress.log_pattern is not None:
                    await self._follow_log(seen, pod, parts_of(seen.progress.log_pattern))
            except (KubeError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                self._note(seen, f"{'/'.join(pod.key)} could not be read: {str(error)[:100] or type(error).__name__}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _follow_log(self, seen: JobSeen, pod: PodSeen, parts: list[Part]) -> None:
        self._note(seen, f"no line of the log of {pod.key[1]} matches logPattern so far")
        loop = asyncio.get_running_loop()
        told_at, rest = 0.0, b""
        chunks = self._kube.logs(pod.key[1], namespace=pod.key[0], container=seen.container, follow=True, tail_lines=1)
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-LONGEST_LINE:]
            if loop.time() - told_at < LEAST_GAP_S:
                continue
            # The newest line that matches is enough, and a flood of others costs no more than a few.
            for line in reversed(lines[-20:]):
                found = numbers(parts, line[:LONGEST_LINE].decode(errors="replace"))
                if found is not None and found["step"] <= MOST_STEP:
                    told_at = loop.time()
                    samples = found.get("samples")
                    self._say(seen, Report(found["step"], None if samples is None else float(samples)))
                    break

    async def _follow_page(self, seen: JobSeen, pod: PodSeen, page: PrometheusProgress) -> None:
        if not pod.address:
            raise ValueError("the pod has no address")
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        url = f"http://{host}:{page.port}{page.path}"
        if self._session is None:
            self._session = aiohttp.ClientSession()
        while True:
            timeout = aiohttp.ClientTimeout(total=PAGE_S)
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    raise ValueError(f"its page answered {response.status}")
                text = (await response.content.read(LONGEST_PAGE)).decode(errors="replace")
            step = amount(text, page.step)
            if step is None or not 0 <= step <= MOST_STEP:
                self._note(seen, f"the page of {pod.key[1]} has no number for {page.step}")
            else:
                self._say(seen, Report(int(step), amount(text, page.samples) if page.samples else None))
            await asyncio.sleep(PAGE_EVERY_S)

    def _say(self, seen: JobSeen, report: Report) -> None:
        self._note(seen, "")
        self._heard(seen, report)

    def _note(self, seen: JobSeen, trouble: str) -> None:
        source = self._sources.get(seen.key)
        if source is not None:
            source.trouble = trouble


def amount(text: str, name: str) -> float | None:
    """The first value of a metric in the text format; None if there is none, or it is no number."""
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " ", "\t"):
            rest = line.rpartition("}")[2] if line[len(name)] == "{" else line[len(name) :]
            words = rest.split()
            try:
                found = float(words[0])
            except (IndexError, ValueError):
                return None
            return found if abs(found) <= 1e18 else None
    return None
