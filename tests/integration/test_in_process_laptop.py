"""Run the examples of training in process on a laptop cluster: they grow, lose workers and shrink, and no survivor's process restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from elastic_runs import elastic_run
from grounds import Ground

from elastic.local import LocalCluster
from elastic_worker.gloo_deadlock import procfs

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOB_FILE = EXAMPLES / "pytorch-in-process/job.yaml"
SHARDED = EXAMPLES / "pytorch-fsdp-in-process"


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


def shard_of(processes: set[int]) -> int:
    """Return a worker of these processes. Each other one may be the stub through which torchrun started it."""
    for pid in processes:
        with contextlib.suppress(procfs.Unreadable):
            if worker := procfs.worker_of(pid):
                return worker
    return min(processes)


async def test_pods_of_two_shards_come_and_go_and_the_model_is_that_of_undisturbed_training(cluster: LocalCluster, tmp_path: Path) -> None:
    stop, trained = tmp_path / "stop", tmp_path / "trained"
    env, file = {"MODEL_FILE": str(trained)}, SHARDED / "job.yaml"
    async with elastic_run(cluster, "shards", workers=1, steps=20, stop_file=stop, file=file, env=env) as run:
        await run.step(5, world=2)
        survivors = run.training_processes(run.pod_name(0))
        assert survivors

        await run.scale(2)
        await run.world(4)
        await run.more_steps(5)

        worlds, before = run.training.worlds, run.training_processes(run.pod_name(1))
        os.kill(shard_of(before), signal.SIGKILL)  # then both are started again
        await run.new_world(4, after=worlds + 1)
        assert run.training_processes(run.pod_name(0)) == survivors
        assert before.isdisjoint(run.training_processes(run.pod_name(1)))

        await run.scale(1)
        await run.world(2)
        await run.more_steps(5)
        assert run.training_processes(run.pod_name(0)) == survivors
        told = await run.elastic()
        assert told["lastRescale"]["rung"] == "in-process"
        assert told["restarts"] == {"user": 1}
        stop.touch()
        await run.success()
        assert run.training.repeated <= 1, "a loss repeats at most the step that was under way"
        steps = run.training.step
    alone = tmp_path / "alone"
    env = {**os.environ, "STEPS": str(steps), "STEP_SECONDS": "0", "MODEL_FILE": str(alone)}
    undisturbed = await asyncio.create_subprocess_exec(sys.executable, str(SHARDED / "train.py"), env=env)
    assert await asyncio.wait_for(undisturbed.wait(), 200) == 0
    weights, expected = torch.load(trained), torch.load(alone)
    assert set(weights) == set(expected)
    assert all(torch.allclose(weights[name], expected[name], rtol=0, atol=1e-10) for name in expected)
