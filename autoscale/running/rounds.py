"""Run the autoscaler's loop: decide about all jobs every few seconds, and let a queue of tasks carry the decisions out.

autoscale.deciding.decide tells the way of one job through this loop. A round reads the caches and the book only, so it takes milliseconds.
Writes go through the queue, because one slow answer of the API server must not delay the decisions about other jobs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Never

import aiohttp

from elastic.api.scaling import PolicyName
from elastic.api.words import Through
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.membership.client import RendezvousClient
from elastic.runtime.fence import Lapsed
from elastic.runtime.workqueue import WorkQueue
from elastic_training.autoscale.acting.scaler import Changed, Scaler
from elastic_training.autoscale.deciding.cluster import PodSeen
from elastic_training.autoscale.deciding.jobs import JobState, Outcome, ScaledJob
from elastic_training.autoscale.deciding.remembering import is_news
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.running.metrics import Metrics
from elastic_training.autoscale.running.troubles import Troubles
from elastic_training.autoscale.watching.observer import Observer
from elastic_training.autoscale.watching.sources import Report, Sources

log = logging.getLogger(__name__)
ROUND_S = 5.0
LEAST_GAP_S = 1.0
"""Between two rounds, when something happened in the cluster."""
WRITERS = 8


class Rounds:
    def __init__(
        self,
        kube: Kube,
        observer: Observer,
        scaler: Scaler,
        book: Book,
        metrics: Metrics,
        *,
        setting: Setting,
        leads: Callable[[], bool],
        pages_through_api: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._scaler = scaler
        self._book = book
        self._metrics = metrics
        self._setting = setting
        self._leads = leads
        self._clock = clock
        self._monotonic = monotonic
        self._queue: WorkQueue[JobName] = WorkQueue(clock=monotonic)
        self._changed = asyncio.Event()
        self._sources = Sources(kube, self._read, pages_through_api=pages_through_api)
        self._troubles = Troubles()
        self._working: dict[str, int] = {}
        """Running workers of the jobs whose progress is read."""

    def changed(self) -> None:
        self._changed.set()

    def saw(self, seen: ScaledJob) -> None:
        self._book.saw(seen, now=self._clock())

    async def listen(self, client: RendezvousClient) -> None:
        """Take in the news of the rendezvous server about all jobs."""
        async for progress in client.progress():
            seen = self._observer.job_of_uid(progress.job)
            self._book.heard(progress, seen=seen, now=self._clock(), monotonic=self._monotonic())

    async def decide(self) -> None:
        """Decide in rounds until cancelled. Every replica keeps its figures up to date; only the leader acts on them."""
        await self._observer.wait_synced()
        try:
            await self._decide_again_and_again()
        finally:
            await self._sources.close()

    async def _decide_again_and_again(self) -> Never:
        while True:
            self._changed.clear()
            began = time.process_time()
            try:
                self._round(self._clock())
            except Exception:
                # A defect about one job must not end the autoscaling of all others for good.
                log.exception("a round of decisions failed")
                self._metrics.failures.inc()
            self._metrics.rounds.observe(time.process_time() - began)
            await asyncio.sleep(LEAST_GAP_S)
            try:
                async with asyncio.timeout(ROUND_S - LEAST_GAP_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _round(self, now: float) -> None:
        jobs = self._observer.jobs()
        if not self._leads():
            for seen in jobs:
                self._book.follow(seen)
        states = self._book.states(jobs, now=now, trouble=self._sources.trouble)
        if not states:
            self._sources.look(())
            return
        pods = self._observer.pods()
        # Every replica reads progress, because a HorizontalPodAutoscaler may ask any of them, and the next leader needs measurements.
        self._sources.look(self._readable(jobs, pods))
        outcomes = self._outcomes(states, pods, now)
        self._troubles.forget_others({state.seen.uid for state in states})
        for state in states:
            outcome = outcomes.get(state.seen.key)
            if outcome is None:
                if not state.seen.is_active:
                    self._book.rests(state.seen)
                continue
            is_told = self._troubles.is_told(state.seen.uid, outcome.decision.trouble, self._monotonic())
            outcome = outcome if self._leads() else _as_annotated(state, outcome, now)
            self._book.decided(state.seen, outcome)
            if self._leads() and (not is_told or self._is_work(state.seen, outcome, now)):
                self._queue.add(state.seen.key)

    def _outcomes(self, states: list[JobState], pods: list[PodSeen], now: float) -> dict[JobName, Outcome]:
        """Decide about all jobs. If that fails, leave out the jobs that cause it, so that one job cannot end the scaling of others."""
        unscaled = self._observer.unscaled()
        decide = partial(decide_all, unscaled=unscaled, setting=self._setting, now=now, monotonic=self._monotonic())
        try:
            return decide(states, self._observer.nodes(), pods)
        except Exception:
            log.exception("a round of decisions failed, and is repeated without the jobs that cannot be decided about")
            self._metrics.failures.inc()
        return decide([state for state in states if self._can_be_decided(state, decide)], self._observer.nodes(), pods)

    def _can_be_decided(self, state: JobState, decide: Callable[..., dict[JobName, Outcome]]) -> bool:
        """Return whether a decision about this job alone, in a cluster without nodes, succeeds."""
        try:
            decide([state], (), ())
        except Exception as error:
            log.warning("nothing can be decided about a job", extra={**state.seen.key.fields(), "error": repr(error)})
            return False
        return True

    def _readable(self, jobs: Iterable[ScaledJob], pods: Iterable[PodSeen]) -> list[tuple[ScaledJob, PodSeen]]:
        """Return the jobs that name a source of progress, each with the pod of rank 0: without our rendezvous its first worker."""
        wanted = {seen.uid: seen for seen in jobs if seen.progress is not None and seen.is_active}
        first: dict[str, PodSeen] = {}
        self._working.clear()
        for pod in pods:
            if pod.owner not in wanted or not (pod.is_worker and pod.is_running) or pod.is_leaving:
                continue
            self._working[pod.owner] = self._working.get(pod.owner, 0) + 1
            known, zero = first.get(pod.owner), self._book.rank_zero(wanted[pod.owner])
            if known is None or pod.key[1] == zero or (known.key[1] != zero and pod.index < known.index):
                first[pod.owner] = pod
        return [(wanted[uid], pod) for uid, pod in first.items()]

    def _read(self, seen: ScaledJob, report: Report) -> None:
        working = self._working.get(seen.uid, 0)
        now, monotonic = self._clock(), self._monotonic()
        self._book.read(seen, step=report.step, samples=report.samples, working=working, now=now, monotonic=monotonic)

    def _is_work(self, seen: ScaledJob, outcome: Outcome, now: float) -> bool:
        """Return whether there is something to write. A job with policy hpa is only measured, for its HorizontalPodAutoscaler."""
        if seen.policy.policy is PolicyName.HPA:
            return False
        return self._scales(seen, outcome) or is_news(self._book.record_of(seen, outcome, now), self._book.record(seen))

    def _scales(self, seen: ScaledJob, outcome: Outcome) -> bool:
        """Return whether we scale the job: a HorizontalPodAutoscaler does if the policy says so."""
        return outcome.decision.count != seen.replicas and seen.policy.through is not Through.HPA

    async def work(self) -> None:
        """Carry out decisions until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            key, _ = await self._queue.take()
            failed = False
            try:
                await self._write(key)
            except Lapsed:
                pass
            except Changed:
                self._changed.set()
            except KubeError as error:
                failed = error.code != 404
                log.warning("a decision was not written", extra={**key.fields(), "error": str(error)})
            except (aiohttp.ClientError, TimeoutError) as error:
                failed = True
                log.warning("a decision was not written", extra={**key.fields(), "error": repr(error)})
            except Exception:
                # A defect about one job must not end the autoscaling of all others.
                failed = True
                log.exception("a decision was not carried out", extra=key.fields())
                self._metrics.failures.inc()
            finally:
                self._queue.done(key, failed=failed)

    async def _write(self, key: JobName) -> None:
        """Write the newest decision, if there is still something to do."""
        seen, outcome, now = self._observer.job(key), self._book.outcome(key), self._clock()
        if seen is not None and (trouble := self._troubles.to_tell(seen.uid)):
            await self._scaler.warn(seen, trouble, now=now)
        if seen is None or outcome is None or not self._is_work(seen, outcome, now):
            return
        record = self._book.record_of(seen, outcome, now)
        version = await self._scaler.annotate(seen, record)
        decision = outcome.decision
        self._book.written(seen, record, decision.memory)
        if not self._scales(seen, outcome):
            return
        await self._scaler.scale(seen, decision.count, version=version)
        self._metrics.changes.labels(seen.policy.policy.value, "grow" if decision.count > seen.replicas else "shrink").inc()
        log.info("scaled", extra={**key.fields(), "from": seen.replicas, "to": decision.count, "reason": decision.reason})
        message = f"Scaled from {seen.replicas} to {decision.count} workers: {decision.reason}"
        await self._scaler.tell(seen, message, count=decision.count, now=now)


def _as_annotated(state: JobState, outcome: Outcome, now: float) -> Outcome:
    """Return the leader's wish if this replica does not lead. The leader wants a number that a user set, also before it has written so."""
    hand, record = state.memory.hand, state.seen.record
    if record is None or (hand is not None and now < hand.until):
        return outcome
    written = record.decision
    return replace(outcome, figures=replace(outcome.figures, wanted=written.workers, reason=written.reason))
