"""Train by the library, under real torchrun agents that meet in a real etcd, while workers come and go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_server import Etcd, needs_etcd
from etcd_torch_agents import EtcdAgents
from in_process_jobs import SCRIPT, Training
from torch_agents import wait_until

from elastic.etcd import observed
from elastic.etcd.records import FINDINGS, MEMBERS, WORLD, Findings, Member, Records, Seal, World
from elastic.membership.wire import WorldReport
from elastic_worker.etcd.records import Leaving

pytestmark = [pytest.mark.integration, pytest.mark.torch, needs_etcd, pytest.mark.timeout(480)]


class Job(Training):
    """One job that meets in an etcd."""

    agents: EtcdAgents

    def report(self) -> WorldReport:
        """Return what the controller would hear of the job."""
        seal, prefix = Seal(self.agents.token, self.agents.job), f"/elastic-training/{self.agents.job}/"
        keys = [key[len(prefix) :] for key in self.agents.etcd.keys(prefix)]
        values = {key: self.agents.etcd.value(prefix + key) for key in keys if key in (WORLD, FINDINGS) or key.startswith(MEMBERS)}
        found = {key: seal.open(key, value) for key, value in values.items() if value is not None}
        members = {key[len(MEMBERS) :]: record for key, record in found.items() if isinstance(record, Member)}
        world, findings = found.get(WORLD), found.get(FINDINGS)
        records = Records(
            members=members,
            world=world if isinstance(world, World) else None,
            findings=findings if isinstance(findings, Findings) else None,
        )
        return observed.heard(self.agents.job, records, None, age_s=0.0, phases={}, silent=())


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, etcd: Etcd) -> Iterator[Job]:
    made = Job(EtcdAgents(tmp_path / "job", etcd, script=SCRIPT, steps=5000, pace_s=0.1))
    yield made
    made.agents.stop()


def test_a_job_shrinks_grows_and_loses_a_pod_without_a_restart_of_the_others(job: Job) -> None:
    job.agents.expect("w0", "w1", "w2")
    job.agents.wait_for_world(3, after=job.start("w0", "w1", "w2"))
    pids = {name: job.pid(name) for name in ("w0", "w1")}

    at = time.time()
    job.agents.expect("w0", "w1", leaving=(Leaving("w2", "plan", 30.0),))
    job.agents.wait_for_world(2, after=at)
    job.agents.kill_pod("w2")

    job.agents.expect("w0", "w1", "w3")
    job.agents.wait_for_world(3, after=job.start("w3"))

    at = time.time()
    job.agents.kill_pod("w3")
    job.agents.wait_for_world(2, after=at)
    assert {name: job.pid(name) for name in ("w0", "w1")} == pids, job.agents.describe()

    at = time.time()
    job.agents.expect("w0", leaving=(Leaving("w1", "plan", 30.0),))
    job.agents.wait_for_world(1, after=at)
    assert job.pid("w0") == pids["w0"]
    world = job.agents.world()
    assert world is not None
    assert (world.restarts, world.change is not None and world.change.stage) == ({"disruption": 1}, "run")
    job.finish()
    job.ends("w0", size=1)


def test_a_program_that_ends_early_and_failing_saves_are_told(job: Job, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    job.agents.expect("w0", "w1", "w2")
    at = time.time()
    for name in ("w0", "w1", "w2"):
        job.agents.start(name, SAVES=str(saves), SAVE_EVERY_S="0.5")
    job.agents.wait_for_world(3, after=at)
    wait_until(lambda: any(saves.glob("*.json")), what=lambda: f"the first complete save\n{job.agents.describe()}")
    saves.rename(tmp_path / "moved")
    saves.touch()  # a file in the place of the folder, so that no save succeeds
    wait_until(lambda: bool(job.report().failing_saves), what=lambda: f"the failing saves\n{job.agents.describe()}")
    failing = job.report().failing_saves[0]
    assert (failing.rank, failing.save.last is not None) == (0, True)
    assert failing.save.words == "File exists"
    saves.unlink()
    wait_until(lambda: not job.report().failing_saves, what=lambda: f"saves that succeed again\n{job.agents.describe()}")

    at = time.time()
    job.agents.folder.joinpath("exit-w1").touch()
    job.agents.wait_for_world(2, after=at)
    world = job.agents.world()
    assert world is not None
    rank = world.reason.partition("(rank ")[2][:1]
    assert world.reason == f"a worker of w1 ended with status 0 (rank {rank}: its program ended in the middle of the training); 2 members"
    assert world.restarts == {"user": 1}


@pytest.mark.full
def test_by_hand_two_workers_of_an_agent_change_worlds_and_etcd_may_restart(tmp_path: Path, etcd: Etcd) -> None:
    """No controller speaks, and no token is set."""
    job = Job(EtcdAgents(tmp_path / "job", etcd, script=SCRIPT, steps=5000, pace_s=0.1, job="by-hand-in-process"))
    try:
        job.agents.wait_for_world(2, after=job.start("w0", workers=2))
        pids = [job.pid("w0", 0), job.pid("w0", 1)]
        job.agents.wait_for_world(4, after=job.start("w1", workers=2))
        etcd.kill()
        time.sleep(6.0)  # all leases end
        etcd.start()
        at = time.time()
        os.kill(job.pid("w1", 1), signal.SIGKILL)
        job.agents.wait_for_world(2, after=at)
        job.agents.wait_for_world(4, after=at)  # torchrun starts the agent's workers again, which join as newcomers
        at = time.time()
        job.agents.signal("w1", signal.SIGTERM)
        job.agents.wait_for_world(2, after=at)
        assert [job.pid("w0", 0), job.pid("w0", 1)] == pids, job.agents.describe()
        world = job.agents.world()
        assert world is not None
        assert world.restarts.get("user") == 1
        job.finish()
    finally:
        job.agents.stop()
