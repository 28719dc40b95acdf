"""A rolling update of the control plane while a job trains, from the release before to this one and back.

Nothing restarts, and nothing is charged. Pods keep the library they were born with, so members of both releases share a world.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from control_plane import install_crds
from elastic_runs import ElasticRun, elastic_run
from laptop import until
from release_before import ROOT, ControlPlane, Release, release_before, training_image

from elastic.local import LocalCluster
from elastic.local.installation import ensure_installation
from elastic.local.ports import free_port

IMAGE = "example.com/train-without-elastic:1"
pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    return {"before": Release("before", release_before(tmp_path_factory.mktemp("before"))), "now": Release("now", ROOT)}


@pytest.fixture(scope="module")
def cluster(releases: dict[str, Release], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nodes and an API server without a control plane, whose pods reach the host's loopback."""
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
    """That of the world of this size, once the status tells of it: the workers' log is ahead of the status."""
    elastic = await run.elastic()
    return elastic["generation"] if elastic.get("worldSize") == size else None


async def undisturbed(run: ElasticRun, *, generation: int, pods: dict[str, tuple[str, int]]) -> None:
    """The same world trains on in the same containers."""
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
async def test_a_worker_image_of_an_older_release_is_named_in_the_condition(
    cluster: LocalCluster, plane: ControlPlane, releases: dict[str, Release]
) -> None:
    """It has not the module that this release's init container runs."""
    plane.serve(releases["now"])
    plane.control(releases["now"], worker_image=releases["before"].image)
    async with elastic_run(cluster, "pinned", workers=1, steps=50, image=IMAGE) as run:
        message = await run.condition_with("for the library in pod pinned-worker-0")
        assert "No module named 'elastic_worker.startup'" in message
        assert f"--worker-image of the controller is {releases['before'].image}: set it to" in message
        assert await run.restarts() == {}
