"""Workers come, go and die while a job trains: the others train on, no step is made twice, and only the job's own faults are charged."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.api.words import Cause
from elastic.kube.resources import POD_DISRUPTION_BUDGETS, PODS, SECRETS, SERVICES
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]
OWNED = (PODS, SERVICES, SECRETS, POD_DISRUPTION_BUDGETS)


@pytest.fixture(scope="module")
def cluster(ground: Ground, shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(ground)


def charged(restarts: dict[str, int]) -> int:
    return sum(count for cause, count in restarts.items() if Cause(cause).is_charged)


async def owned(run: ElasticRun) -> list[str]:
    """Return the objects of the job in the API, as `kind/name`."""
    found = []
    for resource in OWNED:
        for item in (await run.kube.list(resource, namespace=NAMESPACE)).items:
            if any(owner["uid"] == run.key.uid for owner in item["metadata"].get("ownerReferences") or ()):
                found.append(f"{resource.kind}/{item['metadata']['name']}")
    return sorted(found)


async def test_a_job_is_scaled_up_and_down_without_losing_a_step_and_leaves_nothing_when_it_is_deleted(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "resized", workers=1, steps=5000) as run:
        await run.step(5, world=1)
        await run.scale(3)
        await run.world(3)
        first = await run.pods()
        await run.more_steps(10)
        await run.scale(2)
        await run.world(2)
        await run.more_steps(10)
        await until(lambda: _has_pods(run, 2), "the pod that left is gone")
        after = await run.pods()
        assert after.items() <= first.items(), "those that stay are the pods that were there"
        assert run.training.repeated == 0
        assert await run.restarts() == {}
        rescale = await until(lambda: _told_whole(run, to_size=2), "every phase of the rescale is in the status")
        assert (rescale["cause"], rescale["fromSize"]) == ("plan", 3)
        words = f"{rescale['reason']} (cause plan, rescale {rescale['id']})"
        await run.training.until(f"an Event {words}", lambda t: any(words in e.message for e in run.training.events))
        assert f'"id": "{rescale["id"]}"' in (cluster.data_dir / "rendezvous.log").read_text(), "one id in status, Event and log"

        assert {entry.partition("/")[0] for entry in await owned(run)} == {resource.kind for resource in OWNED}
        pids = [pid for name in after for pid in cluster.pids(NAMESPACE, name)]
        assert pids
        await run.kube.delete(run.key.resource, run.key.name, namespace=NAMESPACE)
        await until(lambda: _is_gone(run), "all that the job owned is gone")
        await until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "its processes have ended")


async def _told_whole(run: ElasticRun, *, to_size: int) -> dict[str, Any] | None:
    """Return the last rescale once the status has all of it; until then the status has the one before."""
    rescale: dict[str, Any] = (await run.elastic()).get("lastRescale", {})
    is_whole = rescale.get("phases", {}).keys() >= {"detect", "notice", "drain", "round", "start", "firstStep"}
    return rescale if is_whole and rescale["toSize"] == to_size else None


async def _has_pods(run: ElasticRun, count: int) -> bool:
    return len(await run.pods()) == count


async def _is_gone(run: ElasticRun) -> bool:
    return not await owned(run)


async def test_evictions_are_never_charged_and_a_crash_of_the_training_is(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "evicted", workers=2, steps=5000, maxRestarts=1) as run:
        await run.step(5, world=2)
        for name in (run.pod_name(1), run.pod_name(0)):
            before, worlds = await run.pods(), run.training.worlds
            await run.evict(name)
            await until(partial(_is_replaced, run, before, name), "the evicted pod is gone and has a successor")
            await run.new_world(2, after=worlds)
        assert charged(await run.restarts()) == 0
        assert run.training.repeated == 0

        worlds = run.training.worlds
        run.crash(max(await run.pods()))
        await run.new_world(2, after=worlds)
        await until(lambda: _is_charged(run), "the crash is charged")
        assert charged(await run.restarts()) == 1
        assert run.training.repeated <= 1, "the step in flight"


async def test_the_death_of_worker_0_costs_no_more_than_the_step_in_flight(cluster: LocalCluster) -> None:
    """It trains until worker 0 is there again, however long that takes."""
    stop = cluster.data_dir / "stop-headless"
    async with elastic_run(cluster, "headless", workers=2, steps=50, stop_file=stop) as run:
        await run.step(5, world=2)
        other, worlds = (await run.pods())[run.pod_name(1)], run.training.worlds
        run.kill_worker(run.pod_name(0))
        await run.new_world(2, after=worlds)
        stop.touch()
        await run.success()
        assert run.training.repeated <= 1
        assert (await run.pods())[run.pod_name(1)] == other


async def test_training_that_stands_still_is_restarted_and_told_as_a_hang(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "hanging", workers=2, steps=5000, maxRestarts=50, hangTimeoutSeconds=8, scaleInGraceSeconds=2) as run:
        await run.step(5, world=2)
        worlds = run.training.worlds
        run.crash(run.pod_name(1), by=signal.SIGSTOP)
        await until(lambda: _has_hung(run), "the hang is charged")
        await run.new_world(2, after=worlds)
        await run.more_steps(5)


async def _has_hung(run: ElasticRun) -> bool:
    return (await run.restarts()).get("hang", 0) > 0


async def _is_replaced(run: ElasticRun, before: dict[str, tuple[str, int]], name: str) -> bool:
    """Return whether the pod is replaced. Its successor may have another index, and is there before the pod has gone."""
    uids = {uid for uid, _ in (await run.pods()).values()}
    return before[name][0] not in uids and len(uids) == 2


async def _is_charged(run: ElasticRun) -> bool:
    return charged(await run.restarts()) > 0
