"""A process of a job on the laptop cluster is stopped: the job says which rank holds up the others, and goes on or is restarted."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from elastic_runs import NAMESPACE, ElasticRun, elastic_run
from grounds import Ground
from laptop import until

from elastic.cli import main
from elastic.kube.resources import EVENTS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(600)]
TOLD_WITHIN_S = 150.0


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("hangs")) as running:
        yield running


async def rank_of(run: ElasticRun, name: str) -> int:
    """Return the rank of a worker, from the indexes of all workers in the order of their ranks."""
    return (await run.elastic())["ranks"].split(",").index(name.rpartition("-")[2])  # type: ignore[no-any-return]


async def events(run: ElasticRun, reason: str) -> list[str]:
    found = (await run.kube.list(EVENTS, namespace=NAMESPACE)).items
    return [event["message"] for event in found if event["reason"] == reason and event["involvedObject"]["name"] == run.key.name]


async def said(run: ElasticRun, command: str, *options: str) -> str:
    """Return the output of a command about the job."""
    words = [command, run.key.name, *options, "--kubeconfig", str(run.cluster.kubeconfig)]
    return (await asyncio.to_thread(CliRunner().invoke, main, words)).stdout


async def test_a_restart_for_a_hang_names_the_stopped_rank(cluster: LocalCluster) -> None:
    """It said that no step had come, and named nobody."""
    async with elastic_run(cluster, "stopped", workers=2, steps=100_000, minReplicas=2, maxReplicas=2, hangTimeoutSeconds=15) as run:
        await run.step(20, world=2)
        victim = run.pod_name(1)
        rank = await rank_of(run, victim)
        run.crash(victim, signal.SIGSTOP)

        async def change() -> dict[str, Any] | None:
            found: dict[str, Any] = (await run.elastic())["lastRescale"]
            return found if found["cause"] == "hang" else None

        told = await until(change, "the restart", within_s=TOLD_WITHIN_S)
        assert isinstance(told, dict)
        assert told["reason"].startswith(f"training reported no further step for 15 s: rank {rank} ({victim}) is stopped by a signal")
        assert f"rank {1 - rank} ({run.pod_name(0)}) waits in " in told["reason"]
        await run.more_steps(5)
        assert (await run.restarts()) == {"hang": 1}


@pytest.mark.full
async def test_a_suspected_hang_is_told_everywhere_until_it_ends(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "halted", workers=2, steps=100_000, minReplicas=2, maxReplicas=2) as run:
        await run.step(20, world=2)
        victim = run.pod_name(1)
        rank = await rank_of(run, victim)
        run.crash(victim, signal.SIGSTOP)

        async def suspected() -> dict[str, Any] | None:
            found: dict[str, Any] = (await run.elastic()).get("hang") or {}
            return found if found.get("state") == "SuspectedHang" else None

        hang = await until(suspected, "the suspicion", within_s=TOLD_WITHIN_S)
        assert isinstance(hang, dict)
        first = hang["ranks"][0]
        assert (first["ranks"], first["pods"], first["kind"]) == (str(rank), [{"name": victim, "node": "node-0"}], "stopped")
        place = f"rank {rank} ({victim} on node-0)"
        assert hang["message"].startswith(f"no step comes: {place} is stopped by a signal; "), "a status stays, so its words have no times"
        told = f"{place} has been stopped by a signal for at least "
        (event,) = await until(lambda: events(run, "SuspectedHang"), "the Event")  # type: ignore[misc]
        assert told in event
        found = {one["reason"]: one["message"] for one in json.loads(await said(run, "explain", "-o", "json"))["findings"]}
        assert told in found["SuspectedHang"]
        for command in ("get", "top", "describe"):
            assert told in await said(run, command), command
        run.crash(victim, signal.SIGCONT)
        await run.more_steps(5)
        assert await until(lambda: events(run, "TrainingMoves"), "the end of it")
        assert "hang" not in await run.elastic()
        assert (await run.restarts()) == {}
