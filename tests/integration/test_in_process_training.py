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

from elastic.membership.wire import Leaving

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
    job.expect("w0", leaving=(Leaving(member="w1", by_s=30.0),))
    job.agents.wait_for_world(1, after=at)

    assert job.pid("w0") == survivor
    assert job.restarts() == {"user": 2, "disruption": 1}
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
