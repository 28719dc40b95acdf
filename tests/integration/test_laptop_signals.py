"""Play every signal that `elastic node reclaim` knows on a node with one of a job's two workers.

The job does what the table of signals says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import get, until

from elastic.api.words import Cause
from elastic.cli import main as elastic
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.nodes import Effect, Taint, set_taint
from elastic.kube.resources import EVENTS, NODES, PODS
from elastic.local import LocalCluster
from elastic.local.agent.asking import NotDone, ask_agents
from elastic.local.agent.control import Add, Kill
from elastic.local.reclaim import PLAYABLE, as_seen, show
from elastic.signals.signal import DisruptionSignal, Meaning, On
from elastic.signals.table import BUILT_IN

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(400)]
PATIENCE_S = 100.0
KEPT_BY_THE_CLUSTER = "node-unreachable"
"""A signal whose taint the cluster removes if the node is not silent. test_laptop_losses plays it on a silent node."""
GONE = [row for row in BUILT_IN if row.meaning is Meaning.GONE and row.on is On.NODE_TAINT and row.name != KEPT_BY_THE_CLUSTER]
NEW = [row for row in BUILT_IN if row.meaning is Meaning.INFORM and row.effect == Effect.NO_EXECUTE]
"""Signals on nodes that are not yet open to pods. On another node their taint would end the pods."""
LOST_IN_S = 20
"""Seconds from a signal to the loss of its node: enough for a worker to leave before, and for the test to see that."""


@dataclass(frozen=True)
class Doomed:
    """A job that trains with two workers, one of them on a node with the name of the signal. Only node-1 has room for another worker."""

    run: ElasticRun
    signal: DisruptionSignal
    worker: str
    before: dict[str, tuple[str, int]]

    async def is_replaced(self) -> None:
        """Check that the worker's pod is gone, and that there are two pods again."""

        async def are_others() -> bool:
            pods = await self.run.pods()
            kept = {name: pod for name, pod in self.before.items() if name != self.worker}
            return len(pods) == 2 and kept.items() < pods.items() and self.before[self.worker] not in pods.values()

        await until(are_others, f"{self.worker} has a successor", within_s=PATIENCE_S)

    async def ends_as(self, outcome: str) -> None:
        """Wait until the newest disruption of the status is this signal's, of one worker, and has ended with this outcome."""
        name = self.signal.name

        async def has_ended() -> bool:
            newest: dict[str, Any] = ((await self.run.elastic()).get("disruptions") or [{}])[-1]
            told = [newest.get(key) for key in ("signal", "node", "workers", "outcome")]
            return told == [name, name, 1, outcome] and "endedAt" in newest

        await until(has_ended, f"{name} has ended as {outcome}", within_s=PATIENCE_S)

    async def is_leaving(self) -> bool:
        found = (await self.run.elastic()).get("leaving") or []
        return [(entry["member"], entry["signal"]) for entry in found] == [(self.worker, self.signal.name)]

    async def reclaim(self, *words: str) -> None:
        """Run the command in a thread, with the arguments that a user types."""
        typed = ["node", "reclaim", self.signal.name, "--like", self.signal.name, *words, "--data-dir", str(self.run.cluster.data_dir)]
        await asyncio.to_thread(elastic.main, typed, standalone_mode=False)

    async def node(self) -> dict[str, Any] | None:
        return await get(self.run.kube, self.signal.name, resource=NODES, namespace=None)

    async def needs(self, least: int) -> None:
        run, body = self.run, {"spec": {"elasticPolicy": {"minReplicas": least}}}
        await run.kube.patch(run.key.resource, run.key.name, body, namespace=NAMESPACE, kind=Patch.MERGE)


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster whose nodes have room for one worker each. No node counts as silent while a test runs."""
    with ground.cluster(tmp_path_factory.mktemp("signals"), nodes=2, gpus=1, node_grace_s=600.0) as running:
        yield running


async def spare(kube: Kube, *, is_open: bool) -> None:
    """Open node-1 to a worker, or close it. A taint does it, because a cordon would itself be a signal."""
    await set_taint(kube, "node-1", Taint("example.com/closed", is_removed=is_open))


@contextlib.asynccontextmanager
async def doomed(signal: DisruptionSignal, cluster: LocalCluster) -> AsyncIterator[Doomed]:
    node = signal.name
    async with connect(cluster.kubeconfig) as kube:
        await spare(kube, is_open=False)
        ask_agents(cluster.data_dir, Add(name=node, gpus=1))
        try:
            async with elastic_run(cluster, f"on-{node}", workers=2, steps=10**6, gpus=1, minReplicas=2, maxReplicas=2) as run:
                await run.world(2)
                (there,) = (await kube.list(PODS, namespace=NAMESPACE, fields=f"spec.nodeName={node}")).items
                yield Doomed(run, signal, there["metadata"]["name"], await run.pods())
                assert run.training.repeated <= 1  # a leaving worker may have saved the step in which it stopped the other
                assert not [cause for cause in await run.restarts() if Cause(cause).is_charged]
        finally:
            if await kube.find(NODES, node) is not None:
                with contextlib.suppress(NotDone):  # a test has killed it
                    ask_agents(cluster.data_dir, Kill(name=node))
                await kube.delete(NODES, node)


@pytest.mark.parametrize("signal", PLAYABLE.values(), ids=lambda row: row.name)
async def test_a_signal_is_taken_back_and_then_comes_true(cluster: LocalCluster, signal: DisruptionSignal) -> None:
    async with doomed(signal, cluster) as job:
        if signal.meaning is Meaning.INFORM:
            await informs(job)
            return
        await is_taken_back(job)
        await job.needs(1)
        await spare(job.run.kube, is_open=True)
        await (exchanges(job) if signal.meaning is Meaning.PREPARE else drives_out(job))


@pytest.mark.parametrize("signal", GONE, ids=lambda row: row.name)
async def test_a_worker_of_a_node_that_is_called_gone_is_replaced(cluster: LocalCluster, signal: DisruptionSignal) -> None:
    """Nobody on the node can end its pod. The pod stays until the node is deleted."""
    async with doomed(signal, cluster) as job:
        run = job.run
        await job.needs(1)
        await spare(run.kube, is_open=True)
        ask_agents(cluster.data_dir, Kill(name=signal.name))
        await run.world(1)
        await show(run.kube, signal.name, as_seen(signal, now=datetime.now(UTC), left_s=None))
        await run.world(2)
        await run.kube.delete(NODES, signal.name)
        await job.is_replaced()
        await job.ends_as("Left")


@pytest.mark.parametrize("signal", NEW, ids=lambda row: row.name)
async def test_a_worker_comes_to_a_new_node_once_its_taint_goes(cluster: LocalCluster, signal: DisruptionSignal) -> None:
    """The node's first pods come after its taint has gone. No disruption is announced, and no worker leaves."""
    node = f"new-{signal.name}"
    played = as_seen(signal, now=datetime.now(UTC), left_s=None)
    async with connect(cluster.kubeconfig) as kube:
        await spare(kube, is_open=False)
        ask_agents(cluster.data_dir, Add(name=node, gpus=1))
        try:
            await show(kube, node, played)
            async with elastic_run(cluster, f"on-{node}", workers=2, steps=10**6, gpus=1, minReplicas=1, maxReplicas=2) as run:
                await run.world(1)
                await run.more_steps(40)
                assert run.training.world == 1
                await show(kube, node, played, take_back=True)
                await run.world(2)
                assert len((await kube.list(PODS, namespace=NAMESPACE, fields=f"spec.nodeName={node}")).items) == 1
                assert run.training.repeated == 0
                assert not await run.restarts()
                assert not {"disruptions", "leaving"} & {name for name, found in (await run.elastic()).items() if found}
        finally:
            ask_agents(cluster.data_dir, Kill(name=node))
            await kube.delete(NODES, node)


async def informs(job: Doomed) -> None:
    """Check that the job does nothing, and that an Event tells of the signal if the table calls it news."""
    run, worlds = job.run, job.run.training.worlds
    for take_back in ([], ["--take-back"]):
        await job.reclaim(*take_back)
        await run.more_steps(40)
        assert (await run.pods(), run.training.worlds) == (job.before, worlds)
    assert not (await run.elastic()).get("disruptions")
    events = (await run.kube.list(EVENTS, namespace=NAMESPACE, fields=f"involvedObject.name={run.key.name},reason=SignalSeen")).items
    told = [event for event in events if f"signal {job.signal.name} on node {job.signal.name}" in event["message"]]
    assert len(told) == job.signal.is_news


async def is_taken_back(job: Doomed) -> None:
    """Check that a needed worker without room for another one trains on after the signal is taken back. The command keeps the node."""
    run, worlds = job.run, job.run.training.worlds
    played = asyncio.create_task(job.reclaim(*(("--seconds", "60") if job.signal.meaning is Meaning.LEAVE else ())))
    await until(job.is_leaving, f"{job.worker} is leaving", within_s=PATIENCE_S)
    await job.reclaim("--take-back")
    await played
    await job.ends_as("TakenBack")

    async def are_those_of_before() -> bool:
        return await run.pods() == job.before

    await until(are_those_of_before, "the pods are those of before", within_s=PATIENCE_S)
    await run.more_steps(10)
    assert run.training.worlds == worlds
    assert await job.node() is not None


async def drives_out(job: Doomed) -> None:
    """Check that the other worker goes on without this one while the node is still there."""
    run = job.run
    played = asyncio.create_task(job.reclaim("--seconds", str(LOST_IN_S)))
    await run.world(1)
    assert not played.done()
    await run.world(2)
    await played
    assert await job.node() is None
    await job.is_replaced()
    await job.ends_as("Left")


async def exchanges(job: Doomed) -> None:
    """Check that the worker is replaced without a step of one worker alone, and that the node stays."""
    run, worlds, steps = job.run, job.run.training.worlds, len(job.run.training.steps)
    await job.reclaim()
    await run.new_world(2, after=worlds)
    await job.is_replaced()
    await job.ends_as("Left")
    assert {size for _, size in run.training.steps[steps:]} == {2}
    assert await job.node() is not None
