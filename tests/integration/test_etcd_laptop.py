"""Run a job that meets in the installation's etcd on the laptop.

Workers come, leave and die while others train. The job's login opens no other job's records, and nothing is left of the job at its end.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import ElasticRun, elastic_run
from etcd_server import needs_etcd
from etcd_store import keys_under
from grounds import Ground
from installed_etcd import etcd_on_path, is_clean, prefix_of, store_of
from laptop import until

from elastic.api.words import Cause
from elastic.etcd.accounts import Accounts
from elastic.etcd.store import StoreRefused
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, needs_etcd, pytest.mark.timeout(300)]
IN_PROCESS = Path(__file__).resolve().parents[2] / "examples/pytorch-in-process/job.yaml"
ETCD = {"rdzvBackend": "etcd", "readyAfterSeconds": 1}
OTHERS = "/elastic-training/00000000-1111-2222-3333-444444444444/"


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with etcd_on_path(), ground.cluster(tmp_path_factory.mktemp("etcd-laptop")) as running:
        yield running


async def has_pods(run: ElasticRun, count: int) -> bool:
    return len(await run.pods()) == count


async def told_of_world(run: ElasticRun, size: int) -> dict[str, Any] | None:
    """Return the status once it tells of a world of that size, or None. It lags behind the workers' log."""
    elastic = await run.elastic()
    return elastic if elastic.get("worldSize") == elastic.get("lastRescale", {}).get("toSize") == size else None


async def test_a_job_grows_loses_a_worker_and_shrinks_without_a_charge_and_leaves_nothing(cluster: LocalCluster) -> None:
    async with elastic_run(cluster, "etcd-resized", workers=1, steps=5000, **ETCD) as run:
        await run.step(5, world=1)
        await run.scale(3)
        await run.world(3)
        assert run.training.repeated == 0
        worlds = run.training.worlds
        run.kill_worker(run.pod_name(1))
        await run.new_world(3, after=worlds)
        await run.scale(2)
        await run.world(2)
        await until(partial(has_pods, run, 2), "the pod that left is gone")
        assert not [cause for cause in await run.restarts() if Cause(cause).is_charged]
        elastic = await until(partial(told_of_world, run, 2), "the status tells of the world of two")
        assert (elastic["backend"], elastic["lastRescale"]["cause"]) == ("etcd", "plan")
        await its_login_opens_nothing_else(cluster, run)
        await run.more_steps(3)
    await until(partial(is_clean, cluster, run), "the job's records, its user and its role are gone")


async def test_the_processes_that_stay_live_through_every_change(cluster: LocalCluster, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    async with elastic_run(cluster, "etcd-lives-on", workers=1, steps=20, stop_file=stop, file=IN_PROCESS, **ETCD) as run:
        await run.step(5, world=1)
        survivor = run.training_processes(run.pod_name(0))
        assert survivor

        await run.scale(3)
        await run.world(3)
        await run.more_steps(5)

        worlds = run.training.worlds
        run.crash(run.pod_name(1))
        await run.new_world(3, after=worlds + 1)  # two train on at once, and the new process joins them

        worlds = run.training.worlds
        run.kill_worker(run.pod_name(2))
        await run.new_world(3, after=worlds + 1)

        await run.scale(2)
        await run.world(2)
        await run.more_steps(5)
        assert run.training_processes(run.pod_name(0)) == survivor
        elastic = await until(partial(told_of_world, run, 2), "the status tells of the world of two")
        assert (elastic["backend"], elastic["lastRescale"]["rung"]) == ("etcd", "in-process")
        assert elastic["restarts"] == {"user": 1, "disruption": 1}
        stop.touch()
        await run.success()
        assert run.training.repeated <= 2, "a loss repeats at most the step that was under way"


async def its_login_opens_nothing_else(cluster: LocalCluster, run: ElasticRun) -> None:
    """Check that the job's login cannot list, write, delete or watch another job's records, and cannot list users."""
    async with store_of(cluster) as administrator, store_of(cluster, run.key.uid) as own:
        assert set(await keys_under(own, prefix_of(run))) > {"world", "expected"}
        assert await administrator.put(OTHERS + "world", b"{}", lease=0, unchanged=0)
        with pytest.raises(StoreRefused, match="permission denied"):
            await keys_under(own, OTHERS)
        with pytest.raises(StoreRefused, match="permission denied"):
            await own.put(OTHERS + "expected", b"{}", lease=0, unchanged=0)
        with pytest.raises(StoreRefused, match="permission denied"):
            await own.remove(OTHERS)
        with pytest.raises(StoreRefused, match="permission denied"):
            await anext(aiter(own.watch(OTHERS, 1)))
        with pytest.raises(StoreRefused, match="permission denied"):
            await Accounts(own, password="").jobs()
        assert await keys_under(administrator, OTHERS) == ["world"]
        await administrator.remove(OTHERS)
