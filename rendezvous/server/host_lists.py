"""Keep the host lists of all jobs of a server.

They change by what the controller and the launchers say, and when time alone changes a list. Callers can wait for the next version. HTTP
and tokens are not part of this module.
"""

import asyncio
import logging
from collections.abc import Callable

from elastic.membership.hosts import HostFacts, HostList, HostState, LauncherReport
from elastic.membership.limits import longest_json
from elastic.membership.phases import WorldPhase
from elastic.membership.training import TrainingProgress, TrainingSignal
from elastic_training.rendezvous.hosts.listing import (
    GRACE_S,
    HostJob,
    answer,
    decided,
    state,
    unproven,
    with_facts,
    with_proof,
    with_report,
)
from elastic_training.rendezvous.server.metered import BYTES_PER_MESSAGE, Rate

log = logging.getLogger(__name__)

RANK_0 = "rank-0"
"""The member for which a launcher reports: rank 0 of its program, on any host."""
LAUNCHER_REPORT_BODY = longest_json(LauncherReport)
REPORTS_AT_ONCE, LAUNCHER_MESSAGES_PER_S = 2, 64.0
"""Rates of a launcher: the longest reports in a row, and messages of up to 4 KiB per second in the long run."""
MOST_WAITING = 8
"""Most callers of one job that may wait for a new list. Others are answered at once."""


class HostLists:
    def __init__(
        self,
        *,
        instance: str,
        clock: Callable[[], float],
        changed: Callable[[str], None] = lambda uid: None,
        stepped: Callable[[str], None] = lambda uid: None,
    ) -> None:
        """Hold no list yet. `changed` hears the uid of each job whose hosts change, `stepped` of each whose launcher reports a step."""
        self._instance = instance
        self._clock = clock
        self._changed = changed
        self._stepped = stepped
        self._highest: dict[str, int] = {}
        self._rates: dict[str, Rate] = {}
        self._jobs: dict[str, HostJob] = {}
        self._versions: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._waiters: dict[str, int] = {}

    def expect(self, uid: str, facts: HostFacts, *, grace_s: float = GRACE_S) -> None:
        """Take in the hosts of a job, as the controller names them."""
        self._take(uid, with_facts(self._jobs.get(uid, HostJob()), facts, self._clock(), grace_s=grace_s))

    def knows(self, uid: str) -> bool:
        return uid in self._jobs

    def allows(self, uid: str, length: int) -> bool:
        """Return whether the job's launcher may send so many bytes now. All jobs share the thread that reads them."""
        rate = self._rates.get(uid)
        if rate is None:
            burst = REPORTS_AT_ONCE * LAUNCHER_REPORT_BODY / BYTES_PER_MESSAGE
            rate = self._rates[uid] = Rate(self._clock, messages_per_s=LAUNCHER_MESSAGES_PER_S, burst=burst)
        return rate.allows_bytes(max(length, BYTES_PER_MESSAGE))

    def report(self, uid: str, report: LauncherReport) -> None:
        """Take in the report of a launcher. Nothing is kept of a job that the controller has not named."""
        if (job := self._jobs.get(uid)) is not None:
            self._take(uid, with_report(job, report, self._clock()))
            if report.step is not None:
                self._highest[uid] = max(report.step, self._highest.get(uid, 0))
                self._stepped(uid)

    def prove(self, uid: str, pod_uid: str) -> None:
        if (job := self._jobs.get(uid)) is not None:
            self._take(uid, with_proof(job, pod_uid, self._clock()))

    def forget(self, uid: str) -> int | None:
        """Forget a job. Return the highest step that its launchers reported."""
        self._jobs.pop(uid, None)
        self._versions.pop(uid, None)
        step = self._highest.pop(uid, None)
        self._rates.pop(uid, None)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()
        self._wake(uid)
        return step

    def state(self, uid: str) -> HostState | None:
        """Return the state for the controller; None for a job without hosts."""
        job = self._jobs.get(uid)
        return state(job) if job is not None else None

    def read(self, uid: str) -> HostList | None:
        """Return the hosts with their reasons; None until the controller has named them. With `error` the list must not be used."""
        job = self._jobs.get(uid)
        return answer(job, self.version(uid)) if job is not None else None

    def signal(self, uid: str) -> TrainingSignal | None:
        """Return the reports of the training program through its launcher."""
        told = self.progress(uid)
        if told is None:
            return None
        return TrainingSignal(member=RANK_0, age_s=told.age_s, generation=told.generation, step=told.step, values=told.values)

    def progress(self, uid: str) -> TrainingProgress | None:
        """Return the same for the autoscaler; None if the launcher reports no steps."""
        job = self._jobs.get(uid)
        report = job.report if job is not None else None
        if job is None or report is None or report.step is None:
            return None
        return TrainingProgress(
            job=uid,
            generation=report.assignment,
            phase=WorldPhase.RUNNING,
            size=report.size,
            step=report.step,
            age_s=max(0.0, round(self._clock() - job.reported_at, 3)),
            highest=self._highest.get(uid),
            values=report.values,
        )

    def unproven(self, uid: str) -> list[tuple[str, str]]:
        """Name and pod uid of the ready hosts in which the launcher has yet to run a command."""
        return unproven(self._jobs.get(uid, HostJob()))

    def version(self, uid: str) -> str:
        return f"{self._instance}-{self._versions.get(uid, 0)}"

    async def wait_other(self, uid: str, version: str) -> None:
        """Wait until the version is another one, unless too many wait already."""
        if self._waiters.get(uid, 0) >= MOST_WAITING:
            return
        self._waiters[uid] = self._waiters.get(uid, 0) + 1
        try:
            while self.version(uid) == version:
                await self._waiting.setdefault(uid, asyncio.Event()).wait()
        finally:
            self._waiters[uid] -= 1
            if not self._waiters[uid]:
                del self._waiters[uid]
                self._waiting.pop(uid, None)

    def _take(self, uid: str, job: HostJob) -> None:
        before = self._jobs.get(uid, HostJob())
        self._jobs[uid] = job
        self._set_timer(uid, job)
        if uid in self._versions and answer(job, "") == answer(before, "") and state(job) == state(before):
            return
        self._versions[uid] = self._versions.get(uid, 0) + 1
        names = [entry.name for entry in job.listed]
        if names != [entry.name for entry in before.listed]:
            log.info("the list of hosts has changed", extra={"uid": uid, "hosts": names[:50], "count": len(names)})
        self._wake(uid)
        self._changed(uid)

    def _set_timer(self, uid: str, job: HostJob) -> None:
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()
        if job.look_again_at is not None:
            delay_s = max(0.0, job.look_again_at - self._clock())
            self._timers[uid] = asyncio.get_running_loop().call_later(delay_s, self._look_again, uid)

    def _look_again(self, uid: str) -> None:
        self._timers.pop(uid, None)
        if (job := self._jobs.get(uid)) is not None:
            self._take(uid, decided(job, self._clock()))

    def _wake(self, uid: str) -> None:
        if (waiting := self._waiting.pop(uid, None)) is not None:
            waiting.set()
