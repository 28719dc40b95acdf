"""Run examples/pytorch-in-process on a laptop cluster: it grows, loses workers and shrinks, and no process of a survivor restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_runs import elastic_run
from grounds import Ground

from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]

JOB_FILE = Path(__file__).resolve().parents[2] / "examples/pytorch-in-process/job.yaml"


@pytest.fixture(scope="module")
def cluster(ground: Ground, shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(ground)


async def test_the_processes_that_stay_live_through_every_change(cluster: LocalCluster, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    async with elastic_run(cluster, "lives-on", workers=1, steps=20, stop_file=stop, file=JOB_FILE) as run:
        await run.step(5, world=1)
        survivor = run.training_processes(run.pod_name(0))
        assert survivor

        await run.scale(3)
        await run.world(3)
        await run.more_steps(5)

        worlds = run.training.worlds
        run.crash(run.pod_name(1))
        await run.new_world(3, after=worlds + 1)  # two train on at once, and the new process joins them
        assert run.training_processes(run.pod_name(0)) == survivor

        worlds = run.training.worlds
        run.kill_worker(run.pod_name(2))
        await run.new_world(3, after=worlds + 1)

        await run.scale(2)
        await run.world(2)
        await run.more_steps(5)
        assert run.training_processes(run.pod_name(0)) == survivor
        told = await run.elastic()
        assert told["lastRescale"]["rung"] == "in-process"
        assert told["restarts"] == {"user": 1, "disruption": 1}
        stop.touch()
        await run.success()
        assert run.training.repeated <= 2, "a loss repeats at most the step that was under way"
