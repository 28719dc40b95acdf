"""Which jobs' progress has changed since an autoscaler last heard of it.

A change of the world counts at once, a step only now and then: an autoscaler measures over many seconds, and thousands of jobs share one
stream.
"""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from elastic.membership.training import Progress, Report, Signal
from rendezvous.machine import Job, summary

LEAST_GAP_S = 5.0
MOST_A_SECOND = 200.0
"""Lines for steps; with more jobs each has fewer."""


class ProgressFeed:
    def __init__(self, *, clock: Callable[[], float], most_forgotten: int) -> None:
        self._clock = clock
        self._most_forgotten = most_forgotten
        self._versions: dict[str, int] = {}
        """At which version each job's progress changed last, the newest last."""
        self._forgotten: dict[str, int] = {}
        self._stepped_at: dict[str, float] = {}
        self.version = 0
        self._changed = asyncio.Event()

    def world_changed(self, uid: str) -> None:
        self._publish(uid)

    def stepped(self, uid: str) -> None:
        now = self._clock()
        gap_s = max(LEAST_GAP_S, len(self._versions) / MOST_A_SECOND)
        if now - self._stepped_at.get(uid, -gap_s) >= gap_s:
            self._stepped_at[uid] = now
            self._publish(uid)

    def forget(self, uid: str) -> None:
        if self._versions.pop(uid, None) is None:
            return
        self._stepped_at.pop(uid, None)
        self.version += 1
        self._forgotten.pop(uid, None)
        self._forgotten[uid] = self.version
        while len(self._forgotten) > self._most_forgotten:
            del self._forgotten[next(iter(self._forgotten))]
        self._announce()

    def since(self, version: int) -> tuple[list[str], list[str]]:
        """The jobs that changed after this version, and those that were forgotten; a listener that begins (-1) knows of none."""
        gone = [uid for uid in newer(self._forgotten, version) if uid not in self._versions] if version >= 0 else []
        return newer(self._versions, version), gone

    async def wait_newer(self, version: int) -> None:
        while self.version <= version:
            await self._changed.wait()

    def _publish(self, uid: str) -> None:
        self.version += 1
        self._versions.pop(uid, None)
        self._versions[uid] = self.version
        self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def newer(versions: dict[str, int], version: int) -> list[str]:
    """What changed after this version, the oldest first; it costs no more than there are changes."""
    return list(itertools.takewhile(lambda uid: versions[uid] > version, reversed(versions)))[::-1]


def progress_of(job: Job, reports: dict[str, tuple[Report, float]], now: float) -> Progress:
    """The report with the highest step of the world that stands; others are of workers that lag, or of a former world."""
    seen = summary(job)
    size = seen.standing.size if seen.standing is not None else 0
    zero = job.membership.world.by_rank[0] if size and job.membership.world is not None else None
    known = Progress(job=job.uid, generation=seen.generation, phase=seen.phase, size=size, highest=job.progress.step, rank_zero=zero or "")
    here = [(report, at) for report, at in reports.values() if size and report.generation == seen.generation and report.step is not None]
    if not here:
        return known
    newest, at = max(here, key=lambda one: (one[0].step or 0, -one[1]))
    return msgspec.structs.replace(known, step=newest.step, age_s=max(0.0, round(now - at, 3)), values=newest.values)


def signals_of(reports: dict[str, tuple[Report, float]], now: float) -> list[Signal]:
    """The newest report of each worker."""
    return [
        Signal(member=name, age_s=round(now - at, 3), generation=report.generation, step=report.step, values=report.values)
        for name, (report, at) in reports.items()
    ]
