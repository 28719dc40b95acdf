"""Check which objects the autoscaler's loop writes after a decision, and in which order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from autoscale_cluster import LINEAR, node, running, state
from autoscale_jobs import NOON, measured
from prometheus_client import CollectorRegistry

from elastic.api.scaling import ANNOTATION, MANAGER, Decision, DecisionRecord, PolicyName, ProgressSource, ScalingPolicy, from_text
from elastic.api.words import Through
from elastic.kube.errors import KubeError
from elastic.kube.resources import Resource
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.acting.scaler import Scaler
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen
from elastic_training.autoscale.deciding.jobs import ScaledJob, SizeOwner, Unscaled
from elastic_training.autoscale.deciding.measures import Measured
from elastic_training.autoscale.deciding.round import Setting
from elastic_training.autoscale.deciding.signals import Memory
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.running.metrics import Metrics
from elastic_training.autoscale.running.rounds import Rounds
from elastic_training.autoscale.running.troubles import AGAIN_S, PATIENCE_S, Troubles
from elastic_training.autoscale.watching import sources


@dataclass
class Api:
    """An API server that takes writes. `refusals` answer the next writes of a subresource."""

    writes: list[tuple[str, Any]] = field(default_factory=list)
    refusals: dict[str, list[KubeError]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    log: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    """The output of rank 0. A line is done once it was read."""

    async def patch(self, resource: Resource, name: str, body: Any, *, subresource: str | None = None, **more: Any) -> Any:
        where = subresource or "job"
        if self.refusals.get(where):
            raise self.refusals[where].pop()
        assert more["field_manager"] == MANAGER
        self.writes.append((where, body))
        return {"metadata": {"resourceVersion": "7"}}

    async def create(self, resource: Resource, body: Any, **more: Any) -> Any:
        self.writes.append((resource.plural, body))
        return body

    async def logs(self, name: str, **asked: Any) -> AsyncIterator[bytes]:
        while True:
            yield await self.log.get()
            self.log.task_done()

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.writes]


@dataclass
class Cluster:
    """The content of the caches."""

    seen: ScaledJob
    free: int = 8

    def jobs(self) -> list[ScaledJob]:
        return [self.seen]

    def job(self, key: JobName) -> ScaledJob | None:
        return self.seen if key == self.seen.key else None

    def unscaled(self) -> list[Unscaled]:
        return []

    def nodes(self) -> list[NodeSeen]:
        return [node("n", self.seen.replicas + self.free)]

    def pods(self) -> list[PodSeen]:
        return [replace(pod, is_running=True) for pod in running(state("one", self.seen.replicas))]


class Loop:
    """A loop with one job. The job has one worker and scales linearly, so that everything speaks for a second worker."""

    def __init__(self, *, leads: bool = True, **changes: Any) -> None:
        self.api = Api()
        self.leads = leads
        self.cluster = Cluster(replace(state("one", 1).seen, **changes))
        self.book = Book(is_ready=lambda: True)
        metrics = Metrics(CollectorRegistry(), self.book, leads=lambda: self.leads, sent=self.api.sent)
        api: Any = self.api
        observer: Any = self.cluster
        self.rounds = Rounds(api, observer, Scaler(api, None), self.book, metrics, setting=Setting(), leads=lambda: self.leads)
        seen = self.cluster.seen
        self.book.states([seen], now=0.0)
        self.book.heard(
            TrainingProgress(job=seen.uid, generation=1, phase="running", size=1, step=4, highest=4), seen=seen, now=NOON, monotonic=1e9
        )
        self.book.written(seen, seen.record or DecisionRecord(decision=Decision()), Memory())
        self.book._entries[seen.uid].memory = Memory(sizes=measured({1: LINEAR[1]}))

    async def once(self) -> None:
        """Run one round, and the work that follows from it."""
        self.rounds._round(1_800_000_000.0)
        work = asyncio.create_task(self.rounds.work())
        while len(self.rounds._queue) or self.rounds._queue._working:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_the_reason_is_written_before_the_number_and_an_event_follows() -> None:
    loop = Loop()
    await loop.once()
    assert loop.api.kinds == ["job", "scale", "events"]
    annotated, scaled, event = (body for _, body in loop.api.writes)
    record = from_text(annotated["metadata"]["annotations"][ANNOTATION])
    assert record is not None
    assert record.decision.workers == 2
    assert scaled == {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 2}}
    assert event["message"].startswith("Scaled from 1 to 2 workers: each worker up to 2 is expected to bring")


async def test_a_standby_writes_nothing_and_answers_what_the_leader_wrote() -> None:
    loop = Loop(leads=False, record=DecisionRecord(decision=Decision(workers=5, reason="the leader says so")))
    await loop.once()
    assert loop.api.writes == []
    figures = loop.book.of(loop.cluster.seen.key)
    assert figures is not None
    assert (figures.wanted, figures.reason) == (5, "the leader says so")


@pytest.mark.parametrize("leads", [True, False])
async def test_a_number_that_a_user_sets_is_answered_at_once_by_each_replica(leads: bool) -> None:
    """A HorizontalPodAutoscaler asks any replica, and it undid a user's number before the leader had written about it."""
    loop = Loop(
        leads=leads, policy=replace_policy(through=Through.HPA), record=DecisionRecord(decision=Decision(workers=1, reason="as before"))
    )
    await loop.once()
    loop.cluster.seen = replace(loop.cluster.seen, replicas=5, owners=(SizeOwner("kubectl", True),))
    loop.rounds.saw(loop.cluster.seen)
    for _ in range(2):
        figures = loop.book.of(loop.cluster.seen.key)
        assert figures is not None
        assert figures.wanted == 5
        loop.rounds._round(time.time())


async def test_through_an_hpa_the_number_is_left_to_it() -> None:
    policy = replace_policy(through=Through.HPA)
    loop = Loop(policy=policy)
    await loop.once()
    assert loop.api.kinds == ["job"]
    figures = loop.book.of(loop.cluster.seen.key)
    assert figures is not None
    assert figures.wanted == 2


async def test_a_job_that_rests_has_no_figures() -> None:
    """The metrics told workers and throughput of a finished job until somebody deleted it."""
    loop = Loop()
    await loop.once()
    assert loop.book.jobs()
    loop.cluster.seen = replace(loop.cluster.seen, is_active=False)
    await loop.once()
    assert (loop.book.jobs(), loop.book.of(loop.cluster.seen.key)) == ([], None)
    loop.cluster.seen = replace(loop.cluster.seen, is_active=True)
    await loop.once()
    assert loop.book.jobs()


async def test_a_job_of_policy_hpa_is_measured_and_left_alone() -> None:
    """Its HorizontalPodAutoscaler asked for throughput_per_worker, but no figure of this policy's jobs was known."""
    loop = Loop(policy=replace_policy(policy=PolicyName.HPA))
    await loop.once()
    assert loop.api.writes == []
    figures = loop.book.of(loop.cluster.seen.key)
    assert figures is not None
    assert figures.throughput is not None


async def test_a_standby_answers_for_a_job_whose_log_is_read_also_when_the_leader_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the leader read logs and pages, and writes nothing for the policy hpa. Standbys had no answer, even after the leader's end."""
    monkeypatch.setattr(sources, "LEAST_GAP_S", 0.0)
    policy, source = replace_policy(policy=PolicyName.HPA), ProgressSource(log_pattern="step {step}")
    leader, standby = replicas = [Loop(leads=leads, policy=policy, progress=source) for leads in (True, False)]
    for loop in replicas:
        loop.book = loop.rounds._book = Book(is_ready=lambda: True)
        await loop.once()
    for step in range(5):
        for loop in replicas:
            loop.rounds._monotonic = lambda now=11.0 * step: now
            loop.api.log.put_nowait(b"step %d\n" % (22 * step + 5))
            async with asyncio.timeout(30):
                await loop.api.log.join()
    for loop in replicas:
        loop.rounds._round(NOON)
        figures = loop.book.of(loop.cluster.seen.key)
        assert figures is not None
        assert (figures.throughput, figures.step, figures.working) == (2.0, 93, 1)
    await leader.rounds._sources.close()
    standby.leads = True
    standby.rounds._round(NOON + 5)
    figures = standby.book.of(standby.cluster.seen.key)
    assert figures is not None
    assert figures.throughput == 2.0
    await standby.rounds._sources.close()


def replace_policy(**fields: Any) -> Any:
    return state("one", 1, **fields).seen.policy


async def test_the_reason_why_a_policy_cannot_decide_is_a_warning_of_the_job_once() -> None:
    loop, now = Loop(policy=ScalingPolicy(policy=PolicyName.COST, price_label="price")), 0.0
    loop.rounds._monotonic = lambda: now
    for now in (0.0, 30.0, PATIENCE_S, PATIENCE_S + 5, PATIENCE_S + 2 * AGAIN_S):
        before = len(loop.api.writes)
        await loop.once()
        new = [body for kind, body in loop.api.writes[before:] if kind == "events"]
        assert len(new) == (now == PATIENCE_S), now
        if new:
            assert (new[0]["type"], new[0]["reason"]) == ("Warning", "AutoscalerInTrouble")
            assert new[0]["message"] == (
                "scalingPolicy.priceLabel: nodes of its workers have no number in the label price; label them with the price of an hour"
            )


def test_a_trouble_whose_words_change_is_told_now_and_then_and_told_again_when_it_returns() -> None:
    troubles = Troubles()
    for now in range(0, 3600, 5):
        assert troubles.is_told("a", f"error {now}", now) == (now < PATIENCE_S or (now - PATIENCE_S) % AGAIN_S != 0)
        assert troubles.to_tell("a") == (f"error {now}" if now >= PATIENCE_S and (now - PATIENCE_S) % AGAIN_S == 0 else "")
    assert troubles.is_told("a", "", 3600)
    assert troubles.is_told("a", "error 0", 3605)
    assert not troubles.is_told("a", "error 0", 3605 + PATIENCE_S)
    troubles.forget_others({"b"})
    assert troubles.to_tell("a") == ""


async def test_a_job_that_changed_meanwhile_is_decided_about_again() -> None:
    loop = Loop()
    loop.api.refusals["scale"] = [KubeError(code=409, reason="Conflict", message="changed")]
    await loop.once()
    assert loop.api.kinds == ["job"]
    assert loop.rounds._changed.is_set()


async def test_a_job_that_is_gone_is_no_failure() -> None:
    loop = Loop()
    loop.api.refusals["job"] = [KubeError(code=404, reason="NotFound", message="gone")]
    await loop.once()
    assert loop.api.writes == []


async def test_a_second_round_with_the_same_signals_writes_nothing() -> None:
    loop = Loop(bounds=state("one", 1, most=1).seen.bounds)
    await loop.once()
    assert loop.api.kinds == ["job"]
    await loop.once()
    assert loop.api.kinds == ["job"]


async def test_a_defect_about_one_job_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()

    async def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    loop.api.patch = broken  # type: ignore[method-assign]
    loop.rounds._round(1_800_000_000.0)
    work = asyncio.create_task(loop.rounds.work())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not work.done()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert "a decision was not carried out" in caplog.text


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_costs_no_writes(seed: int) -> None:
    """The decision and the first certain measure are written. For half a day nothing more follows. test_sim_rest plays all processes."""
    from benchmarks.autoscale_round import written_at

    times = written_at(hours=12, seed=seed)
    assert times[0] == 0
    assert times[-1] < 120


async def test_a_job_about_which_nothing_can_be_decided_ends_no_round_of_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its memory is what a hostile annotation could hold before rates had bounds."""
    loop = Loop()
    bad = replace(loop.cluster.seen, key=JobName("PyTorchJob", "evil", "bad"), uid="uid-bad")
    jobs = [bad, loop.cluster.seen]
    loop.cluster.jobs = lambda: jobs  # type: ignore[method-assign]
    loop.book.states(jobs, now=0.0)
    loop.book._entries["uid-bad"].memory = Memory(sizes=(Measured(1, 5e-324, 0.0, 10), Measured(2, 1e308, 0.0, 10)))
    await loop.once()
    assert loop.api.kinds == ["job", "scale", "events"], "the good job is scaled"
    assert "nothing can be decided about a job" in caplog.text
    assert loop.book.of(bad.key) is None
