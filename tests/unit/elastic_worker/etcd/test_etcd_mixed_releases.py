"""Members of the release before and of this one meet in one etcd, and agree on every world.

The older members are the real ones: the library of that release, from the repository's history, under another name.
"""

import importlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO

import pytest
from etcd_agents import OURS, Job, Release
from etcd_living import LivingJob
from release_before import BEFORE, ROOT
from test_etcd_in_process_lives import Living
from test_etcd_laws import Membership

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow

NAME = "elastic_worker_before"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Return the library of the release before."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE, "elastic_worker"], capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"this clone has no history back to {BEFORE}: {found.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    (folder / "elastic_worker").rename(folder / NAME)
    for path in (folder / NAME).rglob("*.py"):
        path.write_text(path.read_text().replace("elastic_worker", NAME))
    sys.path.insert(0, str(folder))
    try:
        modules = {
            name: importlib.import_module(f"{NAME}.{name}") for name in ("agent.view", "etcd.group", "etcd.presence", "etcd.settings")
        }
        yield Release(
            presence=modules["etcd.presence"].EtcdPresence,
            settings=modules["etcd.settings"].Settings,
            rules=modules["etcd.group"].Rules,
            view=modules["agent.view"].View,
        )
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
            del sys.modules[name]


def mixed(before: Release, kind: type[Job] = Job, **rules: object) -> Job:
    """Return a job whose members with an even number are of the release before."""
    job = kind(**rules)
    job.release_of = lambda name: before if int(name[1:]) % 2 == 0 else OURS
    return job


@pytest.fixture
def job(before: Release) -> Iterator[Job]:
    made = mixed(before, max=4, grace_s=5.0)
    yield made
    made.close()


def test_they_form_one_world_and_go_on_after_a_loss_and_a_failure(job: Job) -> None:
    job.start("w0", "w1", "w2", "w3")
    job.live()
    assert job.in_world() == {"w0", "w1", "w2", "w3"}
    for name in ("w1", "w2"):
        job.end(name)
        job.live()
        assert job.in_world() == set(job.agents)
    job.agents["w3"].fail()
    job.live()
    world = job.world()
    assert world is not None
    assert (job.in_world(), world.restarts) == ({"w0", "w3"}, {"disruption": 2, "user": 1})


@pytest.mark.parametrize("first", ["w0", "w1"])
def test_whoever_decides_the_members_that_must_leave_go_as_planned(job: Job, first: str) -> None:
    """The first survivor by rank writes: of the release before, or of this one."""
    other = {"w0": "w1", "w1": "w0"}[first]
    job.start(first)
    job.expect(first)
    job.live()
    job.start(other, "w2", "w3")
    job.expect("w0", "w1", "w2", "w3")
    job.live()
    assert job.in_world() == {"w0", "w1", "w2", "w3"}
    assert job.names()[0] == first
    job.expect("w0", "w1")
    job.live()
    world = job.world()
    assert world is not None
    assert (job.in_world(), world.restarts, world.cause) == ({"w0", "w1"}, {}, "plan")


def test_workers_that_could_live_on_restart_while_a_member_of_the_release_before_is_there(before: Release) -> None:
    job = mixed(before, LivingJob, max=4, grace_s=5.0)
    try:
        job.start("w1", "w3")
        job.expect("w1", "w3")
        job.live()
        world = job.world()
        assert world is not None
        assert world.change is not None
        assert world.change.stage == "run"
        job.start("w2")
        job.expect("w1", "w2", "w3")
        job.live()
        assert (job.in_world(), job.agents["w1"].starts) == ({"w1", "w2", "w3"}, 2)  # type: ignore[attr-defined]
        job.end("w3")
        job.live()
        assert (job.in_world(), job.agents["w1"].starts) == ({"w1", "w2"}, 3)  # type: ignore[attr-defined]
        job.end("w2")
        job.start("w3")
        job.expect("w1", "w3")
        job.live()
        world = job.world()
        assert world is not None
        assert world.change is not None
        assert (job.in_world(), world.change.stage) == ({"w1", "w3"}, "run")
    finally:
        job.close()


def test_they_agree_whatever_happens_to_workers_that_live_on(before: Release) -> None:
    class Mixed(Living):
        def make_job(self, **rules: object) -> LivingJob:
            return mixed(before, LivingJob, **rules)  # type: ignore[return-value]

    Mixed.TestCase.settings = Membership.TestCase.settings
    Mixed.TestCase("runTest").runTest()


def test_they_agree_whatever_happens(before: Release) -> None:
    """The laws of the rendezvous in etcd hold for both together, too."""

    class Mixed(Membership):
        def make_job(self, **rules: object) -> Job:
            return mixed(before, **rules)

    Mixed.TestCase.settings = Membership.TestCase.settings
    Mixed.TestCase("runTest").runTest()
