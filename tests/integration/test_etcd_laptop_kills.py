"""Jobs that meet in the installation's etcd on the laptop while processes of laptop and job are killed and pods evicted.

And a job whose etcd nobody reaches.
"""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from elastic_runs import PATIENCE_S, ElasticRun, elastic_run
from etcd_server import needs_etcd
from installed_etcd import etcd_on_path, is_clean
from laptop import until

from elastic.api.words import Cause
from elastic.kube.following import Outcome
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, needs_etcd, pytest.mark.timeout(420)]
ETCD = {"rdzvBackend": "etcd", "readyAfterSeconds": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with etcd_on_path(), LocalCluster(data_dir=tmp_path_factory.mktemp("etcd-laptop")) as started:
        yield started


def charged(restarts: dict[str, int]) -> int:
    return sum(count for cause, count in restarts.items() if Cause(cause).is_charged)


async def is_replaced(run: ElasticRun, before: dict[str, tuple[str, int]], name: str) -> bool:
    after = await run.pods()
    return len(after) == len(before) and after.get(name, ("",))[0] != before[name][0]


async def is_charged(run: ElasticRun, count: int) -> bool:
    return charged(await run.restarts()) == count


async def test_no_etcd_runs_until_a_job_asks_for_one(cluster: LocalCluster) -> None:
    assert "etcd" not in cluster.processes()


async def test_a_crash_is_charged_once_and_an_eviction_is_not(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "etcd-crashed", workers=2, steps=5000, maxRestarts=2, **ETCD) as run:
        await run.step(5, world=2)
        worlds = run.training.worlds
        run.crash(run.pod_name(1))
        await run.new_world(2, after=worlds)
        await run.more_steps(10)
        await until(partial(is_charged, run, 1), "the crash is charged")
        before, worlds = await run.pods(), run.training.worlds
        await run.evict(run.pod_name(0))
        await until(partial(is_replaced, run, before, run.pod_name(0)), "the evicted pod has a successor")
        await run.new_world(2, after=worlds)
        await run.more_steps(10)
        assert charged(await run.restarts()) == 1, "only the program's own end counts"


async def test_training_that_stands_still_is_restarted_and_charged_as_a_hang(cluster: LocalCluster) -> None:
    policy = {"maxRestarts": 50, "hangTimeoutSeconds": 8, "scaleInGraceSeconds": 2}
    async with elastic_run(cluster, "etcd-hanging", workers=2, steps=5000, **(ETCD | policy)) as run:
        await run.step(5, world=2)
        worlds = run.training.worlds
        run.crash(run.pod_name(1), by=signal.SIGSTOP)
        await until(partial(has_hung, run), "the hang is charged")
        await run.new_world(2, after=worlds)
        await run.more_steps(5)


async def has_hung(run: ElasticRun) -> bool:
    return (await run.restarts()).get("hang", 0) > 0


async def test_etcd_and_controller_are_killed_and_the_job_trains_on_to_its_end(cluster: LocalCluster, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    async with elastic_run(cluster, "etcd-killed", workers=2, steps=50, stop_file=stop, **ETCD) as run:
        await run.step(5, world=2)
        worlds = run.training.worlds
        cluster.kill("controller")
        cluster.kill("etcd")
        await run.more_steps(20)
        assert run.training.worlds == worlds, "nobody was disturbed"
        await run.scale(3)
        await run.world(3)
        await run.more_steps(10)
        assert charged(await run.restarts()) == 0
        stop.touch()
        await run.success()
        await until(partial(is_clean, cluster, run), "the job's records and its user are gone")


async def test_a_job_whose_etcd_nobody_reaches_waits_says_so_once_and_is_held_to_its_deadline(cluster: LocalCluster) -> None:
    nowhere = {"rdzvBackend": "etcd", "rdzvHost": "127.0.0.1", "rdzvPort": 1}
    async with elastic_run(cluster, "etcd-nowhere", workers=1, steps=5, run_policy={"activeDeadlineSeconds": 45}, **nowhere) as run:
        message = await run.condition_with("cannot follow the rendezvous in etcd, and counts pods")
        assert "127.0.0.1:1" in message
        assert not (await run.elastic()).get("worldSize"), "it waits"
        await run.training.until("the end", lambda t: t.ended is not None, within_s=PATIENCE_S)
        assert run.training.ended is Outcome.FAILED
        await run.condition_with("it was active longer than specified deadline")
        assert len([event for event in run.training.events if event.reason == "WorldUnreadable"]) == 1
