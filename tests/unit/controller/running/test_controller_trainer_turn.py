"""TrainJobs are served only while no controller of Kubeflow Trainer's serves them, in whatever namespace it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from served_api import refusal, served

from elastic.api.trainer.modes import TRAINER_LEASE, holder_of_trainer
from elastic.kube.client import Kube
from elastic.kube.resources import Object
from elastic.runtime.election import LeaseLost
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.running.trainer_turn import OtherLeases, TrainerTurn

LEASES = "/apis/coordination.k8s.io/v1/leases"
PATIENCE_S = 30


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """An API server with Leases of Kubeflow Trainer's name, which takes Events."""

    def __init__(self) -> None:
        self.leases: dict[str, Object] = {}
        self.is_refused = False
        self.hangs: asyncio.Event | None = None
        self.looks = 0
        self.events: list[Object] = []

    def renew(self, namespace: str, *, holder: str = "trainer_1", time: str = "1", lasts_s: int = 15) -> None:
        spec = {"holderIdentity": holder, "renewTime": time, "leaseDurationSeconds": lasts_s}
        self.leases[namespace] = {"metadata": {"name": TRAINER_LEASE, "namespace": namespace}, "spec": spec}

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.events.append(await request.json())
            return web.json_response(self.events[-1])
        assert (request.path, request.query["fieldSelector"]) == (LEASES, f"metadata.name={TRAINER_LEASE}")
        self.looks += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.is_refused:
            return refusal(403, "Forbidden")
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(self.leases.values())})


class Turns:
    """An election that is won at once, and lost when told to."""

    def __init__(self) -> None:
        self.won = 0
        self.lost = asyncio.Event()

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.won += 1
        working, lost = asyncio.create_task(work()), asyncio.create_task(self.lost.wait())
        try:
            done, _ = await asyncio.wait([working, lost], return_when=asyncio.FIRST_COMPLETED)
            if working in done:
                working.result()
            self.lost.clear()
            raise LeaseLost("lost")
        finally:
            for task in (working, lost):
                task.cancel()
            await asyncio.gather(working, lost, return_exceptions=True)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[Kube]:
    async with served(cluster.answer) as found:
        yield found


def others(kube: Kube, clock: Clock) -> OtherLeases:
    return OtherLeases(kube, namespace="kubeflow-system", clock=clock)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - the facts of this test wake nobody
            await asyncio.sleep(0.01)


async def test_a_lease_of_another_namespace_counts_once_it_is_seen_to_be_renewed(cluster: Cluster, kube: Kube) -> None:
    clock = Clock()
    seen = others(kube, clock)
    cluster.renew("kubeflow", time="1")
    await seen.look()
    assert (seen.holder(), seen.is_decided()) == (None, False)
    clock.now = 5
    cluster.renew("kubeflow", time="2")
    await seen.look()
    assert (seen.holder(), seen.is_decided()) == (("kubeflow", "trainer_1"), True)
    clock.now = 21
    await seen.look()
    assert (seen.holder(), seen.is_decided()) == (None, True), "its holder has been silent for longer than its Lease lasts"


async def test_leases_of_dead_holders_and_of_our_own_count_for_nothing(cluster: Cluster, kube: Kube) -> None:
    clock = Clock()
    seen = others(kube, clock)
    cluster.renew("kubeflow", holder="")
    cluster.renew("elsewhere", holder=holder_of_trainer("elastic-system"))
    cluster.renew("kubeflow-system", holder="trainer_2")
    await seen.look()
    assert seen.is_decided()
    cluster.renew("old", lasts_s=1_000_000)
    await seen.look()
    assert not seen.is_decided()
    clock.now = 31
    await seen.look()
    assert (seen.holder(), seen.is_decided()) == (None, True), "a Lease is not believed for days"


async def test_leases_that_may_not_be_read_stop_nobody(cluster: Cluster, kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    cluster.is_refused = True
    seen = others(kube, Clock())
    await seen.look()
    await seen.look()
    assert (seen.holder(), seen.is_decided()) == (None, True)
    assert [record.levelname for record in caplog.records if "would not be noticed" in record.message] == ["WARNING"]


async def test_an_api_server_that_does_not_answer_leaves_what_is_known(
    cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_training.controller.running.trainer_turn.LONGEST_LOOK_S", 0.05)
    seen = others(kube, Clock())
    cluster.renew("kubeflow", time="1")
    await seen.look()
    cluster.renew("kubeflow", time="2")
    await seen.look()
    cluster.hangs = asyncio.Event()
    await seen.look()
    assert seen.holder() == ("kubeflow", "trainer_1")
    cluster.hangs.set()


class Scene:
    """A turn that runs, with how often its work began and ended."""

    def __init__(self, kube: Kube) -> None:
        self.clock, self.turns = Clock(), Turns()
        self.begun = self.ended = 0
        recorder = EventRecorder(kube)
        now = lambda: datetime.now(UTC)  # noqa: E731
        turn = TrainerTurn(others(kube, self.clock), self.turns, recorder, namespace="kubeflow-system", now=now, look_s=0.01)
        self.running = asyncio.create_task(turn.run(self._work))

    async def _work(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


async def test_a_lost_lease_ends_the_work_with_an_event_and_it_goes_on_when_it_is_ours_again(cluster: Cluster, kube: Kube) -> None:
    """The whole controller ended, and with it the work for all other jobs."""
    scene = Scene(kube)
    await until(lambda: scene.begun == 1)
    scene.turns.lost.set()
    await until(lambda: scene.begun == 2)
    assert (scene.ended, scene.turns.won) == (1, 2)
    (event,) = cluster.events
    assert (event["type"], event["reason"], event["involvedObject"]["kind"]) == ("Warning", "TrainJobsNotServed", "Lease")
    assert event["message"].startswith("another process has taken Kubeflow Trainer's Lease, so this controller serves no TrainJobs.")
    await scene.end()
    assert scene.ended == 2


async def test_a_trainer_that_starts_in_another_namespace_ends_the_work_until_it_has_gone(cluster: Cluster, kube: Kube) -> None:
    scene = Scene(kube)
    await until(lambda: scene.begun == 1)
    cluster.renew("kubeflow", time="1")
    looks = cluster.looks
    await until(lambda: cluster.looks > looks + 1)
    assert scene.ended == 0, "nobody knows yet whether its holder lives"
    cluster.renew("kubeflow", time="2")
    await until(lambda: scene.ended == 1)
    await until(lambda: cluster.events)
    assert "Kubeflow Trainer runs in namespace kubeflow (trainer_1 holds its Lease there)" in cluster.events[0]["message"]
    assert cluster.events[0]["metadata"]["namespace"] == "kubeflow"
    looks = cluster.looks
    await until(lambda: cluster.looks > looks + 1)
    assert scene.begun == 1
    scene.clock.now = 60
    await until(lambda: scene.begun == 2)
    await scene.end()


async def test_an_error_of_the_work_is_no_lost_lease(cluster: Cluster, kube: Kube) -> None:
    turn = TrainerTurn(
        others(kube, Clock()), Turns(), EventRecorder(kube), namespace="kubeflow-system", now=lambda: datetime.now(UTC), look_s=0.01
    )

    async def broken() -> None:
        raise ValueError("a part is broken")

    with pytest.raises(ValueError, match="a part is broken"):
        async with asyncio.timeout(PATIENCE_S):
            await turn.run(broken)
    assert cluster.events == []
