"""Train by the library, under real torchrun agents and a real rendezvous server, while workers come and go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process_jobs import Job
from torch_agents import Server, serving, wait_until

from elastic.membership.wire import LeaveOrder

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, server: Server) -> Iterator[Job]:
    made = Job(server, tmp_path / "job")
    yield made
    made.agents.stop()


def test_a_job_grows_loses_a_process_a_pod_and_a_stopped_worker_and_shrinks(job: Job) -> None:
    job.expect("w0", "w1")
    job.agents.wait_for_world(2, after=job.start("w0", "w1"))
    survivor = job.pid("w0")

    job.expect("w0", "w1", "w2")
    job.agents.wait_for_world(3, after=job.start("w2"))

    at = time.time()
    os.kill(job.pid("w1"), signal.SIGKILL)
    job.agents.wait_for_world(2, after=at)
    job.agents.wait_for_world(3, after=at)  # torchrun starts the process again, which joins the world as a newcomer

    at = time.time()
    job.agents.kill_pod("w2")
    job.agents.wait_for_world(2, after=at)

    at = time.time()
    os.kill(job.pid("w1"), signal.SIGSTOP)
    job.agents.wait_for_world(1, after=at)
    job.agents.wait_for_world(2, after=at)

    at = time.time()
    job.expect("w0", leaving=(LeaveOrder(member="w1", by_s=30.0),))
    job.agents.wait_for_world(1, after=at)

    assert job.pid("w0") == survivor
    assert job.restarts() == {"user": 2, "disruption": 1}
    job.finish()
    job.ends("w0", size=1)


def test_a_program_that_raises_and_ends_slowly_is_charged_and_its_peers_train_on(job: Job) -> None:
    """The peers complained while the process flushed its logs. The server called it a disruption, and the job restarted for ever."""
    job.expect("w0", "w1")
    job.agents.wait_for_world(2, after=job.start("w0", "w1"))
    survivor, at = job.pid("w0"), time.time()
    job.agents.folder.joinpath("raise-w1").touch()
    job.agents.wait_for_world(1, after=at)
    job.agents.wait_for_world(2, after=at)
    assert job.restarts() == {"user": 1}
    assert job.pid("w0") == survivor


def test_a_program_that_ends_with_status_0_in_the_middle_is_charged_and_its_peers_train_on(job: Job) -> None:
    """The peers waited for the network, for minutes and without a word."""
    job.expect("w0", "w1")
    job.agents.wait_for_world(2, after=job.start("w0", "w1"))
    survivor, at = job.pid("w0"), time.time()
    job.agents.folder.joinpath("exit-w1").touch()
    job.agents.wait_for_world(1, after=at)
    assert (job.restarts(), job.pid("w0")) == ({"user": 1}, survivor)
    world = job.server.world(job.agents.job)
    assert world is not None
    assert "its program ended in the middle of the training" in world.reason
    job.finish()
    job.ends("w0", size=1)


def test_a_new_server_disturbs_nobody_and_decides_the_next_change_in_process(job: Job, server: Server) -> None:
    job.expect("w0", "w1", "w2")
    job.agents.wait_for_world(3, after=job.start("w0", "w1", "w2"))
    pids = {name: job.pid(name) for name in ("w0", "w1", "w2")}
    server.kill()
    server.start()
    job.expect("w0", "w1", "w2", floor=1)
    wait_until(lambda: job.phase() == "running", what=lambda: f"the server knows the world\n{job.agents.describe()}")
    at = time.time()
    job.agents.kill_pod("w2")
    job.agents.wait_for_world(2, after=at)
    assert {name: job.pid(name) for name in ("w0", "w1")} == {name: pids[name] for name in ("w0", "w1")}


def test_two_workers_of_an_agent_change_worlds_together(job: Job) -> None:
    job.expect("w0")
    job.agents.wait_for_world(2, after=job.start("w0", workers=2))
    pids = [job.pid("w0", 0), job.pid("w0", 1)]
    job.expect("w0", "w1")
    job.agents.wait_for_world(4, after=job.start("w1", workers=2))
    at = time.time()
    job.agents.kill_pod("w1")
    job.agents.wait_for_world(2, after=at)
    assert [job.pid("w0", 0), job.pid("w0", 1)] == pids


@pytest.mark.full
def test_all_workers_of_the_first_agent_begin_with_the_same_weights(tmp_path: Path, server: Server) -> None:
    """Both workers of the first agent were donors of the first world, so each one trained on from its own random weights."""
    job = Job(server, tmp_path / "job", steps=40)
    try:
        job.expect("w0", "w1", min=2)
        job.start("w0", "w1", workers=2)
        job.ends("w0", "w1", size=4)
    finally:
        job.agents.stop()


@pytest.mark.full
def test_a_program_may_form_a_group_of_its_own_while_a_change_is_announced(job: Job) -> None:
    """The agent passed no addresses on once it had heard of the next change, so the group waited for them in vain."""
    job.agents.folder.joinpath("group-in-step").write_text("20")
    job.expect("w0", "w1", min=2)
    job.agents.wait_for_world(2, after=job.start("w0", "w1"))
    pids = [job.pid("w0"), job.pid("w1")]
    job.expect("w0", "w1", "w2", min=2)
    job.agents.wait_for_world(3, after=job.start("w2"))
    assert [line.split()[1] for line in (job.agents.folder / "groups").read_text().splitlines()] == ["2", "2"], job.agents.describe()
    assert [job.pid("w0"), job.pid("w1")] == pids


def test_a_torch_that_is_too_old_restarts_at_each_change_and_says_so_once(job: Job) -> None:
    job.expect("w0")
    job.agents.start("w0", TEST_OLD_TORCH="1")
    job.agents.wait_for_world(1)
    first, at = job.pid("w0"), time.time()
    job.expect("w0", "w1", min=2)
    job.agents.start("w1", TEST_OLD_TORCH="1")
    job.agents.wait_for_world(2, after=at)
    assert job.pid("w0") != first
    assert job.agents.output("w1").count("has no init_sync") == 1


@pytest.fixture
def warm(tmp_path: Path, server: Server) -> Iterator[Job]:
    """Return a job whose workers a fork server starts, with an end that two workers reach."""
    made = Job(server, tmp_path / "job", steps=400, pace_s=0.02, library=tmp_path / "library")
    made.expect("w0")
    yield made
    made.agents.stop()


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_lost_process_of_the_only_pod_is_replaced_and_its_siblings_live_on(local_rank: int, warm: Job) -> None:
    """All processes of the pod started again, so the training lost its state and began at step 0."""
    warm.agents.wait_for_world(2, after=warm.start("w0", workers=2))
    sibling, at = warm.pid("w0", 1 - local_rank), time.time()
    os.kill(warm.pid("w0", local_rank), signal.SIGKILL)
    warm.agents.wait_for_world(2, after=at)
    assert warm.pid("w0", 1 - local_rank) == sibling, warm.agents.describe()
    assert warm.restarts() == {"user": 1}
    assert min(int(entry["step"]) for entry in warm.agents.log() if float(entry["at"]) > at) > 0, warm.agents.describe()
    warm.ends("w0", size=2)


def test_all_processes_of_the_only_pod_start_again_if_the_one_in_a_lost_ones_place_fails(warm: Job) -> None:
    warm.agents.wait_for_world(2, after=warm.start("w0", workers=2))
    (warm.agents.folder / "no-newcomers").touch()
    sibling, at = warm.pid("w0", 1), time.time()
    os.kill(warm.pid("w0", 0), signal.SIGKILL)
    warm.agents.wait_for_world(2, after=at)
    assert warm.pid("w0", 1) != sibling, warm.agents.describe()
    assert warm.restarts() == {"user": 1}
    warm.ends("w0", size=2)
