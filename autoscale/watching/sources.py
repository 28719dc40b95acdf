"""Read the progress of jobs whose script reports none, from rank 0's log or from a page of its pod.

The cost of each source is bounded, whatever the pod prints: lines and pages are cut, only parts of a flood of output are read, and a silent
source is tried again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import aiohttp

from elastic.api.log_pattern import Part, numbers, parts_of
from elastic.api.scaling import PrometheusProgress
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.membership.bounds import printable
from elastic_training.autoscale.deciding.cluster import PodSeen
from elastic_training.autoscale.deciding.jobs import ScaledJob
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.watching import pages
from elastic_training.autoscale.watching.pages import Pages

log = logging.getLogger(__name__)
MOST_SOURCES = 512
LONGEST_LINE = 4096
PAGE_EVERY_S = 5.0
BYTES_A_SECOND, BURST = 64 * 1024, 256 * 1024
"""Bytes of one source that are read per second in the long run, and at once, because one thread reads all sources."""
FIRST_LINES, SKIPPED_TO_LINES = 1, 20
LEAST_GAP_S = 1.0
"""Least seconds between two reports of one source."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
MOST_STEP = 2**53
LOG, PAGE = "logPattern", "prometheus"
REMEDIES = {LOG: "let elastic-autoscaler read logs of pods", PAGE: "correct port and path, or see why the page does not answer"}


@dataclass(frozen=True, slots=True)
class Report:
    """Progress of a job as a source reported it."""

    step: int
    samples: float | None = None


Heard = Callable[[ScaledJob, Report], None]


@dataclass(slots=True)
class _Source:
    seen: ScaledJob
    pod: PodSeen
    task: asyncio.Task[None]
    trouble: str = ""


class Sources:
    def __init__(self, kube: Kube, heard: Heard, *, pages_through_api: bool = False) -> None:
        self._kube = kube
        self._heard = heard
        self._sources: dict[JobName, _Source] = {}
        self._pages = Pages(kube, through_api=pages_through_api)

    def look(self, wanted: Iterable[tuple[ScaledJob, PodSeen]]) -> None:
        """Read from these pods and from no others. If there are too many jobs, the last ones of the largest namespaces wait."""
        chosen = {seen.key: (seen, pod) for seen, pod in _in_turns(wanted)[:MOST_SOURCES]}
        for key, source in list(self._sources.items()):
            now = chosen.get(key)
            if now is None or now[1].uid != source.pod.uid or now[0].progress != source.seen.progress:
                source.task.cancel()
                del self._sources[key]
        for key, (seen, pod) in chosen.items():
            if key not in self._sources:
                self._sources[key] = _Source(seen, pod, asyncio.create_task(self._read(seen, pod)))

    def trouble(self, key: JobName) -> str:
        """Say why this job has no progress: the field, what was found, what to do."""
        source = self._sources.get(key)
        return f"elasticPolicy.progress.{_field(source.seen)}: {source.trouble}" if source is not None and source.trouble else ""

    async def close(self) -> None:
        self.look(())
        await self._pages.close()

    async def _read(self, seen: ScaledJob, pod: PodSeen) -> None:
        """Read until cancelled. A source that fails is tried again, later each time, unless it was read for long."""
        assert seen.progress is not None
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            began = loop.time()
            try:
                if seen.progress.prometheus is not None:
                    await self._follow_page(seen, pod, seen.progress.prometheus)
                elif seen.progress.log_pattern is not None:
                    await self._follow_log(seen, pod, parts_of(seen.progress.log_pattern))
            except (KubeError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                words = f"no answer within {pages.PAGE_S:g} s" if isinstance(error, TimeoutError) else _told(error)
                self._note(seen, f"{'/'.join(pod.key)} could not be read: {words}; {REMEDIES[_field(seen)]}")
            if loop.time() - began >= LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _follow_log(self, seen: ScaledJob, pod: PodSeen, parts: list[Part]) -> None:
        self._note(seen, f"no line of the log of {pod.key[1]} matches it so far; let rank 0 print one, or change the pattern")
        lines, more = FIRST_LINES, True
        while more:
            found = self._kube.logs(pod.key[1], namespace=pod.key[0], container=seen.container, follow=True, tail_lines=lines)
            async with contextlib.aclosing(found) as chunks:
                more = await self._read_log(seen, chunks, parts)
            await asyncio.sleep(BURST / BYTES_A_SECOND if more else 0)
            lines = SKIPPED_TO_LINES

    async def _read_log(self, seen: ScaledJob, chunks: AsyncIterator[bytes], parts: list[Part]) -> bool:
        """Read the log. Return true if reading stopped because too much came, and false if the log has ended."""
        loop = asyncio.get_running_loop()
        told_at, rest = loop.time() - LEAST_GAP_S, b""
        left, left_at = float(BURST), loop.time()
        async for chunk in chunks:
            now = loop.time()
            left, left_at = min(BURST, left + (now - left_at) * BYTES_A_SECOND) - len(chunk), now
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-LONGEST_LINE:]
            if now - told_at >= LEAST_GAP_S and (report := _newest(parts, lines)) is not None:
                told_at = now
                self._say(seen, report)
            if left < 0:
                return True
        return False

    async def _follow_page(self, seen: ScaledJob, pod: PodSeen, page: PrometheusProgress) -> None:
        while True:
            text = await self._pages.read(pod, page)
            step = amount(text, page.step)
            if step is None or not 0 <= step <= MOST_STEP:
                self._note(seen, f"the page of {pod.key[1]} has no number for {page.step}; name a metric that it has")
            else:
                self._say(seen, Report(int(step), amount(text, page.samples) if page.samples else None))
            await asyncio.sleep(max(PAGE_EVERY_S, len(text) / BYTES_A_SECOND))

    def _say(self, seen: ScaledJob, report: Report) -> None:
        self._note(seen, "")
        self._heard(seen, report)

    def _note(self, seen: ScaledJob, trouble: str) -> None:
        source = self._sources.get(seen.key)
        if source is not None:
            source.trouble = trouble


def _told(error: Exception) -> str:
    """Return the error in one printable line, because a pod may have written its text."""
    return printable(" ".join(str(error).split()))[:100] or type(error).__name__


def _field(seen: ScaledJob) -> str:
    return PAGE if seen.progress is not None and seen.progress.prometheus is not None else LOG


def _in_turns(wanted: Iterable[tuple[ScaledJob, PodSeen]]) -> list[tuple[ScaledJob, PodSeen]]:
    """Order by turns: the first job of each namespace, then the second of each. So no namespace takes the places of others."""
    counts: Counter[str] = Counter()
    ordered = []
    for seen, pod in wanted:
        counts[seen.key.namespace] += 1
        ordered.append((counts[seen.key.namespace], seen, pod))
    ordered.sort(key=lambda one: one[0])
    return [(seen, pod) for _, seen, pod in ordered]


def _newest(parts: list[Part], lines: list[bytes]) -> Report | None:
    """Return the report of the newest line that matches. A flood of other lines costs no more than a few."""
    for line in reversed(lines[-20:]):
        found = numbers(parts, line[:LONGEST_LINE].decode(errors="replace"))
        if found is not None and found["step"] <= MOST_STEP:
            samples = found.get("samples")
            return Report(found["step"], None if samples is None else float(samples))
    return None


def amount(text: bytes, name: str) -> float | None:
    """Return the first value of a metric in the text format, or None if it is missing or no number.

    A page of a million lines costs no more than three searches.
    """
    found = [at for end in "{ \t" if (at := (b"\n" + text).find(f"\n{name}{end}".encode())) >= 0]
    if not found:
        return None
    line = text[min(found) :][:LONGEST_LINE].partition(b"\n")[0].decode(errors="replace")
    rest = line.rpartition("}")[2] if line[len(name)] == "{" else line[len(name) :]
    words = rest.split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if abs(value) <= 1e18 else None
