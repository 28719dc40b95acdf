"""Real torchrun agents against a real rendezvous server: whatever comes and goes, the others train on."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_agents import Agents, Server, serving, wait_until

from rendezvous.wire import Expectation

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def agents(tmp_path: Path, server: Server) -> Iterator[Agents]:
    group = Agents(tmp_path / "job", server, job="0d9f5b1e-job")
    yield group
    group.stop()


def names(count: int) -> tuple[str, ...]:
    return tuple(f"train-worker-{index}" for index in range(count))


def test_a_job_grows_and_survives_a_terminated_and_a_killed_worker(server: Server, agents: Agents) -> None:
    server.expect(agents.job, Expectation(members=names(1), min=1, max=3, max_restarts=0))
    agents.start("train-worker-0")
    agents.wait_for_world(1)

    grown = time.time()
    server.expect(agents.job, Expectation(members=names(3), min=1, max=3, max_restarts=0))
    agents.start("train-worker-1")
    agents.start("train-worker-2")
    agents.wait_for_world(3, after=grown)

    terminated = time.time()
    agents.signal("train-worker-1", signal.SIGTERM)
    agents.wait_for_world(2, after=terminated)
    server.expect(agents.job, Expectation(members=("train-worker-0", "train-worker-2"), min=1, max=3, max_restarts=0))

    killed = time.time()
    agents.kill_pod("train-worker-0")
    agents.wait_for_world(1, after=killed)

    wait_until(lambda: agents.processes["train-worker-2"].poll() is not None, what=lambda: f"the last worker finishes\n{agents.describe()}")
    assert agents.processes["train-worker-2"].returncode == 0, agents.describe()
    world = server.world(agents.job)
    assert world is not None
    assert world.phase == "finished"
    assert "user" not in world.restarts
