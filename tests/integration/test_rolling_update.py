"""Update and roll back the control plane while a job trains, between the release before and this one.

Nothing restarts, and nothing is charged. A pod keeps the library that it was created with, so members of both releases share a world.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from control_plane import install_crds
from elastic_runs import ElasticRun, elastic_run
from etcd_server import Etcd, needs_etcd
from laptop import until
from release_before import ROOT, TOO_OLD, ControlPlane, Release, release_before, training_image

from elastic.api.words import Cause
from elastic.local import LocalCluster
from elastic.local.installation import ensure_installation
from elastic.local.ports import free_port

IMAGE = "example.com/train-without-elastic:1"
pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    trees = {"before": release_before(tmp_path_factory.mktemp("before")), "now": ROOT}
    trees["too-old"] = release_before(tmp_path_factory.mktemp("too-old"), commit=TOO_OLD)
    return {name: Release(name, tree) for name, tree in trees.items()}


@pytest.fixture(scope="module")
def cluster(releases: dict[str, Release], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run nodes and an API server without a control plane; pods reach the host's loopback."""
    folder = tmp_path_factory.mktemp("images")
    images = {release.image: release.stand_in(folder) for release in releases.values()} | {IMAGE: training_image(folder / "training")}
    with LocalCluster(sandbox="loopback", control_plane=False, images=images) as running:
        yield running


@pytest.fixture
async def plane(cluster: LocalCluster, tmp_path: Path) -> Iterator[ControlPlane]:
    await install_crds(cluster.kubeconfig, kinds="pytorchjobs")
    ensure_installation(tmp_path / "installation", addresses=())
    started = ControlPlane(tmp_path, cluster.kubeconfig, tmp_path / "installation", free_port())
    try:
        yield started
    finally:
        started.stop()
        print(started.log())


async def generation_of(run: ElasticRun, size: int) -> int | None:
    """Return the generation of the world of this size once the status shows it; the workers' log is ahead of the status."""
    elastic = await run.elastic()
    return elastic["generation"] if elastic.get("worldSize") == size else None


async def undisturbed(run: ElasticRun, *, generation: int, pods: dict[str, tuple[str, int]]) -> None:
    """Check that the same world trains on in the same containers."""
    await run.more_steps(20)
    assert (await run.elastic())["generation"] == generation
    assert await run.pods() == pods


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        pytest.param("before", "now", "server", id="update, server first"),
        pytest.param("before", "now", "controller", id="update, controller first", marks=pytest.mark.full),
        pytest.param("now", "before", "server", id="rollback, server first", marks=pytest.mark.full),
        pytest.param("now", "before", "controller", id="rollback, controller first"),
    ],
)
async def test_a_job_trains_on_through_a_rolling_update(
    cluster: LocalCluster, plane: ControlPlane, releases: dict[str, Release], tmp_path: Path, old: str, new: str, first: str
) -> None:
    plane.serve(releases[old])
    plane.control(releases[old])
    async with elastic_run(cluster, f"{old}-{first}", workers=2, steps=50, stop_file=tmp_path / "stop", image=IMAGE) as run:
        await run.step(5, world=2)
        first_two = dict.fromkeys(map(run.pod_name, range(2)), releases[old].library)
        await run.training.until("agents have the library of the release that created their pods", lambda t: t.libraries == first_two)
        generation = await until(partial(generation_of, run, 2), "the status tells of the world of two")
        pods = await run.pods()

        steps = [plane.serve, plane.control] if first == "server" else [plane.control, plane.serve]
        for replace in steps:
            replace(releases[new])
            await undisturbed(run, generation=generation, pods=pods)

        await run.scale(3)
        await run.world(3)
        await run.more_steps(10)
        after = await run.pods()
        assert pods.items() <= after.items(), "a worker of the new release joins those of the old one"
        all_three = {**first_two, run.pod_name(2): releases[new].library}
        await run.training.until("the third has the library of the new release", lambda t: t.libraries == all_three)
        assert await run.restarts() == {}
        assert run.training.repeated == 0

        worlds = run.training.worlds
        await run.evict(run.pod_name(0))
        await run.new_world(3, after=worlds)
        known = {uid for uid, _ in after.values()}
        (replacement,) = [name for name, (uid, _) in (await run.pods()).items() if uid not in known]
        await run.training.until("so has the replacement", lambda t: t.libraries.get(replacement) == releases[new].library)
        assert not set(await run.restarts()) - {"disruption", "plan"}, "an eviction is charged to nobody"

        restarts = await run.restarts()
        (tmp_path / "stop").touch()
        await run.success()
        assert await run.restarts() == restarts, "members of both releases end together"


@pytest.mark.full
@needs_etcd
@pytest.mark.parametrize(("old", "new"), [pytest.param("before", "now", id="update"), pytest.param("now", "before", id="rollback")])
async def test_a_job_in_an_etcd_trains_on_while_half_of_its_members_have_the_other_release(
    cluster: LocalCluster, plane: ControlPlane, releases: dict[str, Release], tmp_path: Path, old: str, new: str
) -> None:
    """Its members decide by themselves, so two releases of the library must decide alike from the same records."""
    plane.serve(releases[old])
    plane.control(releases[old])
    with Etcd(tmp_path) as etcd:
        policy: dict[str, Any] = {"rdzvBackend": "etcd", "rdzvHost": "127.0.0.1", "rdzvPort": etcd.ports[0], "readyAfterSeconds": 1}
        async with elastic_run(
            cluster, f"etcd-{old}", workers=2, steps=50, stop_file=tmp_path / "stop", image=IMAGE, maxReplicas=4, **policy
        ) as run:
            await run.step(5, world=2)
            generation = await until(partial(generation_of, run, 2), "the status tells of the world of two")
            pods = await run.pods()
            plane.control(releases[new])
            await undisturbed(run, generation=generation, pods=pods)

            await run.scale(4)
            await run.world(4)
            generation = await until(partial(generation_of, run, 4), "the status tells of the world of four")
            half = {run.pod_name(index): releases[old if index < 2 else new].library for index in range(4)}
            await run.training.until("two members have the library of the new release", lambda t: t.libraries == half)
            pods = await run.pods()
            for release in (old, new):
                plane.control(releases[release])
                await undisturbed(run, generation=generation, pods=pods)
            assert await run.restarts() == {}
            assert run.training.repeated == 0

            worlds = run.training.worlds
            run.kill_worker(run.pod_name(0))
            await run.new_world(4, after=worlds)
            restarts = await run.restarts()
            assert not [cause for cause in restarts if Cause(cause).is_charged], "a killed pod is charged to nobody"
            (tmp_path / "stop").touch()
            await run.success()


@pytest.mark.full
async def test_a_worker_image_of_an_older_release_is_named_in_the_condition(
    cluster: LocalCluster, plane: ControlPlane, releases: dict[str, Release]
) -> None:
    """Name the image if it lacks the module that this release's init container runs."""
    plane.serve(releases["now"])
    plane.control(releases["now"], worker_image=releases["too-old"].image)
    async with elastic_run(cluster, "pinned", workers=1, steps=50, image=IMAGE) as run:
        message = await run.condition_with("for the library in pod pinned-worker-0")
        assert "No module named 'elastic_worker.startup'" in message
        assert f"--worker-image of the controller is {releases['too-old'].image}: set it to" in message
        assert await run.restarts() == {}
