"""Processes of the control plane are killed while jobs train. The jobs must not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from elastic_runs import elastic_run
from grounds import Ground
from laptop import until

from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("faults")) as running:
        yield running


async def kill(cluster: LocalCluster, process: str) -> None:
    """Kill -9, and wait until it was started again."""
    pid = cluster.processes()[process]
    cluster.kill(process)
    await until(lambda: cluster.processes()[process] != pid, f"{process} was started again")


async def test_training_does_not_notice_that_the_control_plane_is_killed_process_by_process(cluster: LocalCluster) -> None:
    stop = cluster.data_dir / "stop-undisturbed"
    async with elastic_run(cluster, "undisturbed", workers=2, steps=50, stop_file=stop) as run:
        await run.step(10, world=2)
        before, first = await run.pods(), run.training.step
        for process in ("controller", "rendezvous", "apiserver", "agents"):
            run.training.story.tell(f"kill {process}")
            await kill(cluster, process)
            await run.more_steps(20)
        stop.touch()
        await run.success()
        # A worker that starts slowly may come to a world of one.
        told = [entry for entry in run.training.steps if entry[0] >= first]
        assert told == [(step, 2) for step in range(first, run.training.step + 1)]
        assert await run.pods() == before
        assert await run.restarts() == {}


async def test_a_scaling_that_nobody_was_there_to_see_is_carried_out_afterwards(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "unseen", workers=1, steps=5000) as run:
        await run.step(5, world=1)
        cluster.kill("controller")
        cluster.kill("rendezvous")
        await run.scale(2)
        await run.world(2)
        await run.more_steps(10)
        assert run.training.repeated == 0
        assert await run.restarts() == {}
