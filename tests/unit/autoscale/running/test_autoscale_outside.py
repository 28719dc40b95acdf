"""Jobs that meet outside of our rendezvous: worlds follow from their pods, and steps from a page or a log."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from autoscale_cluster import node, pod, state
from autoscale_jobs import NOON
from prometheus_client import CollectorRegistry

from elastic.api.scaling import ANNOTATION, MANAGER, PolicyName, ProgressSource, PrometheusProgress, Window, from_text
from elastic.api.words import Through
from elastic.kube.resources import Resource
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.acting.scaler import Scaler
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen
from elastic_training.autoscale.deciding.jobs import ScaledJob, SizeOwner, Unscaled
from elastic_training.autoscale.deciding.round import Setting
from elastic_training.autoscale.figures import JobFigures, JobName
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.running.metrics import Metrics
from elastic_training.autoscale.running.rounds import Rounds
from elastic_training.autoscale.serving.values import value

sys.path.append(str(Path(__file__).parents[3] / "sim"))
from sim_time import run

PAGE = ProgressSource(prometheus=PrometheusProgress(port=8000, path="/metrics", step="step_total"))
LOG = ProgressSource(log_pattern="step {step}")
STARTS_S, REGROUPS_S = 3.0, 4.0
"""How long a new pod takes until it runs, and how long nobody trains after a change."""
PATIENCE_S = 900.0
MOST = 4


@dataclass
class Town:
    """A c10d job whose pods follow its number of workers, on a virtual clock. It is the API server and the caches in one."""

    seen: ScaledJob
    steps_a_second: Callable[[int], float]
    free: int = 8
    prices: bool = False
    waiting: tuple[PodSeen, ...] = ()
    working: int = 1
    step: float = 0.0
    away_until: float = 0.0
    rounds: Rounds = field(init=False)

    # --- what the caches show

    def jobs(self) -> list[ScaledJob]:
        return [self.seen]

    def job(self, key: JobName) -> ScaledJob | None:
        return self.seen if key == self.seen.key else None

    def unscaled(self) -> list[Unscaled]:
        return []

    def nodes(self) -> list[NodeSeen]:
        """Return one node for each pod; the first is dear, so that each further worker lowers the price of the work."""
        labels = [{"price": "4" if index == 0 else "1"} if self.prices else {} for index in range(self.free)]
        return [node(f"n{index}", 1, **of_node) for index, of_node in enumerate(labels)]

    def pods(self) -> list[PodSeen]:
        workers = (pod(f"one-{i}", on=f"n{i}", owner=self.seen.uid, index=i) for i in range(self.working))
        return [*(replace(worker, is_running=True) for worker in workers), *self.waiting]

    async def wait_synced(self) -> None:
        pass

    # --- what the API server takes and gives

    async def patch(self, resource: Resource, name: str, body: Any, *, subresource: str | None = None, **more: Any) -> Any:
        if subresource == "scale":
            self.scale(body["spec"]["replicas"], MANAGER)
        else:
            self.seen = replace(self.seen, record=from_text(body["metadata"]["annotations"][ANNOTATION]))
        return {"metadata": {"resourceVersion": "7"}}

    async def create(self, resource: Resource, body: Any, **more: Any) -> Any:
        return body

    def scale(self, replicas: int, manager: str) -> None:
        self.seen = replace(self.seen, replicas=replicas, owners=(SizeOwner(manager, True),))

    async def logs(self, name: str, **asked: Any) -> AsyncIterator[bytes]:
        while asyncio.get_running_loop().time() >= self.away_until:
            yield b"step %d\n" % self.step
            await asyncio.sleep(1)

    @contextlib.asynccontextmanager
    async def asked_of_pod(self, name: str, path: str, **asked: Any) -> AsyncIterator[Any]:
        if asyncio.get_running_loop().time() < self.away_until:
            raise ConnectionRefusedError
        yield Page(b"step_total %d\n" % self.step)

    # --- time

    async def live(self) -> None:
        """Let pods start and end, and train."""
        loop = asyncio.get_running_loop()
        changed_at = loop.time()
        while True:
            await asyncio.sleep(0.5)
            now = loop.time()
            if self.seen.replicas == self.working:
                changed_at = now
            elif now - changed_at >= STARTS_S:
                self.working, self.away_until = self.seen.replicas, now + REGROUPS_S
                self.rounds.changed()
            if now >= self.away_until:
                self.step += 0.5 * self.steps_a_second(self.working)


class Page:
    """Part of an answer that Pages reads."""

    status = 200

    def __init__(self, body: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.content = self
        self._body = body

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._body


Act = Callable[[Town, JobFigures | None], None]
"""An action that somebody other than the autoscaler repeats until the job has changed its number of workers."""


@dataclass(frozen=True)
class Case:
    policy: dict[str, Any]
    up: Act = lambda town, figures: None
    down: Act = lambda town, figures: setattr(town, "waiting", _needy(town))
    steps_a_second: Callable[[int], float] = lambda _: 10.0
    """A step is one batch of each worker: with the same number of steps twice as many workers do twice the work."""
    work_of_step: Callable[[int], float] = lambda workers: workers
    more: dict[str, Any] = field(default_factory=dict)


def _needy(town: Town) -> tuple[PodSeen, ...]:
    """Return a pod of higher priority that finds no room, because the job has all nodes."""
    town.free = town.working
    return town.waiting or (pod("inference", priority=100, since=NOON),)


def _room_for_one_more(town: Town, _: JobFigures | None) -> None:
    town.free = town.working + 1


def _with_policy(town: Town, **fields: Any) -> None:
    policy = state("one", 1, **fields).seen.policy
    if policy != town.seen.policy:
        town.seen = replace(town.seen, policy=policy)


def _window_of(more: int) -> Act:
    def act(town: Town, _: JobFigures | None) -> None:
        if town.seen.replicas == town.working:
            _with_policy(
                town,
                policy=PolicyName.SCHEDULE,
                cooldown_seconds=10,
                windows=(Window(start="00:00", end="00:00", replicas=town.working + more),),
            )

    return act


def _due(town: Town, _: JobFigures | None) -> None:
    """Ask for an end that one worker more can just reach: a worker does one step a second."""
    steps_s = town.working + 0.3
    if town.seen.replicas == town.working:
        left_s = (1_000_000 - town.step) / steps_s
        _deadline(town, left_s)


def _deadline(town: Town, left_s: float) -> None:
    now = NOON + asyncio.get_running_loop().time()
    finish_by = datetime.fromtimestamp(now, UTC) + timedelta(seconds=left_s)
    _with_policy(town, policy=PolicyName.DEADLINE, cooldown_seconds=10, total_steps=1_000_000, finish_by=finish_by)


def _hpa(more: int) -> Act:
    def act(town: Town, _: JobFigures | None) -> None:
        if town.seen.replicas == town.working:
            town.scale(town.working + more, "kube-controller-manager")

    return act


def _carried_out(town: Town, figures: JobFigures | None) -> None:
    """Do what a HorizontalPodAutoscaler does with the metric desired_workers."""
    if figures is not None and figures.wanted is not None and figures.wanted != town.seen.replicas:
        town.scale(figures.wanted, "kube-controller-manager")


def _carried_out_for_needy(town: Town, figures: JobFigures | None) -> None:
    town.waiting = _needy(town)
    _carried_out(town, figures)


CASES = {
    "throughput": Case({"policy": PolicyName.THROUGHPUT}),
    "capacity": Case({"policy": PolicyName.CAPACITY}, up=_room_for_one_more, more={"free": 1}),
    "cost": Case({"policy": PolicyName.COST, "price_label": "price"}, more={"prices": True}),
    "deadline": Case(
        {"policy": PolicyName.DEADLINE, "total_steps": 1_000_000},
        up=_due,
        steps_a_second=lambda workers: float(workers),
        work_of_step=lambda _: 1.0,
    ),
    "schedule": Case(
        {"policy": PolicyName.SCHEDULE, "windows": (Window(start="00:00", end="00:00", replicas=1),)}, _window_of(1), _window_of(-1)
    ),
    "hpa": Case({"policy": PolicyName.HPA}, up=_hpa(1), down=_hpa(-1)),
    "through: hpa": Case({"policy": PolicyName.THROUGHPUT, "through": Through.HPA}, _carried_out, _carried_out_for_needy),
}


@pytest.mark.parametrize("source", [PAGE, LOG], ids=["page", "log"])
@pytest.mark.parametrize("name", CASES)
def test_a_job_outside_our_rendezvous_is_followed_up_and_down(name: str, source: ProgressSource) -> None:
    """The first report made a world of the pods that ran then, and every later one kept it.

    A c10d job was scaled once. Then "1 of 2 workers train together" stood in its status until the autoscaler was restarted, and the served
    figures were those of one worker.
    """
    run(_up_and_down(CASES[name], source))


async def _up_and_down(case: Case, source: ProgressSource) -> None:
    seen = replace(state("one", 1, most=MOST, cooldown_seconds=10, **case.policy).seen, progress=source, container="pytorch")
    town = Town(seen, case.steps_a_second, **case.more)
    book = Book(is_ready=lambda: True)
    metrics = Metrics(CollectorRegistry(), book, leads=lambda: True, sent={})
    api: Any = town
    loop = asyncio.get_running_loop()
    town.rounds = Rounds(
        api,
        api,
        Scaler(api, None),
        book,
        metrics,
        setting=Setting(),
        leads=lambda: True,
        pages_through_api=True,
        clock=lambda: NOON + loop.time(),
        monotonic=loop.time,
    )
    tasks = [asyncio.create_task(part) for part in (town.live(), town.rounds.decide(), town.rounds.work())]
    for workers, act in ((1, None), (2, case.up), (3, case.up), (4, case.up), (3, case.down)):
        await _until(town, book, workers, act)
        await _until_served(town, book, metrics, case, workers)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(found, asyncio.CancelledError) for found in ended), ended


async def _until(town: Town, book: Book, workers: int, act: Act | None) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    before = town.working
    while town.working != workers:
        assert town.working == before, f"{town.working} workers on the way from {before} to {workers}"
        assert loop.time() < until, f"{workers} workers are due: {book.of(town.seen.key)}"
        if act is not None and town.seen.replicas != workers:
            act(town, book.of(town.seen.key))
        await asyncio.sleep(1)


async def _until_served(town: Town, book: Book, metrics: Metrics, case: Case, workers: int) -> None:
    """Wait until the figures of this number of workers are served, and compare them."""
    loop, key = asyncio.get_running_loop(), town.seen.key
    until = loop.time() + 90
    while (figures := book.of(key)) is None or figures.throughput is None or figures.working != workers:
        assert loop.time() < until, f"nothing is served of {workers} workers: {book.of(key)}"
        await asyncio.sleep(1)
    rate = case.steps_a_second(workers) * case.work_of_step(workers)
    served = {name: value(name, figures).text for name in ("training_workers", "throughput", "throughput_per_worker")}
    assert served["training_workers"] == str(workers)
    assert figures.throughput == pytest.approx(rate, rel=0.1)
    assert served["throughput"] is not None
    assert served["throughput_per_worker"] is not None
    labels = {"namespace": key.namespace, "kind": key.kind, "job": key.name}
    assert metrics.registry.get_sample_value("elastic_job_workers", labels) == workers
    assert metrics.registry.get_sample_value("elastic_job_throughput", labels) == pytest.approx(rate, rel=0.1)
    record = town.seen.record
    assert record is None or "no progress" not in record.decision.reason or town.seen.policy.policy is PolicyName.HPA


def test_the_stream_of_worlds_wins_over_the_pods_that_run() -> None:
    """A page may be read before the rendezvous server has said anything of the job."""
    book, seen = Book(is_ready=lambda: True), state("one", 3).seen
    book.states([seen], now=0.0)
    book.read(seen, step=1, samples=None, working=3, now=0.0, monotonic=0.0)
    book.heard(TrainingProgress(job=seen.uid, generation=7, phase="running", size=2), seen=seen, now=1.0, monotonic=1.0)
    book.read(seen, step=2, samples=None, working=3, now=2.0, monotonic=2.0)
    (known,) = book.states([seen], now=3.0)
    assert known.training.progress is not None
    assert (known.training.progress.generation, known.training.size) == (7, 2)


def test_reports_of_the_program_of_such_a_job_say_nothing_of_its_workers() -> None:
    """Its reports in the form of Kubeflow Trainer come through the stream as well, and end an hour after the last one."""
    book, seen = Book(is_ready=lambda: True), state("one", 3).seen
    book.states([seen], now=0.0)
    for progress in (TrainingProgress(job=seen.uid, step=5, highest=5), TrainingProgress(job=seen.uid, forgotten=True)):
        book.read(seen, step=1, samples=None, working=3, now=0.0, monotonic=0.0)
        book.heard(progress, seen=seen, now=1.0, monotonic=1.0)
        (known,) = book.states([seen], now=2.0)
        assert known.training.progress is not None
        assert (known.training.size, known.training.progress.step) == (3, 1)


def test_nothing_is_kept_of_a_job_outside_our_rendezvous_that_is_gone() -> None:
    """The stream says when a job of ours is forgotten, and says nothing about this one."""
    book, seen = Book(is_ready=lambda: True), state("one", 3).seen
    book.states([seen], now=0.0)
    book.read(seen, step=1, samples=None, working=3, now=0.0, monotonic=0.0)
    assert book.states([], now=1.0) == []
    (known,) = book.states([seen], now=2.0)
    assert known.training.progress is None
