"""Real torchrun agents at the end of a job's work: who comes too late is let go with status 0, and who still works is left alone."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_agents import Agents, Server, serving, wait_until

from elastic.membership.wire import Budget, Expectation

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]

UNTIL_ASKED = """
import os, sys, time
folder, member = sys.argv[3], os.environ["ELASTIC_MEMBER"]
with open(os.path.join(folder, "log"), "a") as log:
    log.write(f"{time.time():.3f} {member} first rank={os.environ['RANK']} size={os.environ['WORLD_SIZE']} step=0\\n")
while not os.path.exists(os.path.join(folder, "finish-" + member)):
    time.sleep(0.02)
sys.exit(3 if os.path.exists(os.path.join(folder, "fail-" + member)) else 0)
"""
NAMES = ("train-worker-0", "train-worker-1", "train-worker-2")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def agents(tmp_path: Path, server: Server) -> Iterator[Agents]:
    group = Agents(tmp_path / "job", server, job="0d9f5b1e-job", script=UNTIL_ASKED)
    server.expect(group.job, Expectation(members=NAMES, min=2, max=4, budget=Budget(max_restarts=0)))
    for name in NAMES:
        group.start(name)
    group.wait_for_world(3)
    yield group
    group.stop()


def finish(agents: Agents, *names: str) -> None:
    for name in names:
        (agents.folder / f"finish-{name}").touch()


def finished(agents: Agents, server: Server, *names: str) -> None:
    """Let these agents end with 0, and wait until the server knows it."""
    finish(agents, *names)
    line = f'elastic_rendezvous_members{{phase="finished"}} {len(names)}.0'.encode()
    wait_until(lambda: line in server.call("GET", "/metrics")[1], what=agents.describe)


def ends_well(agents: Agents, *names: str) -> None:
    for name in names:
        wait_until(lambda name=name: agents.processes[name].poll() is not None, what=lambda: agents.describe(), patience_s=60)  # type: ignore[misc]
        assert agents.processes[name].returncode == 0, agents.describe()


def phase(server: Server, agents: Agents) -> str:
    world = server.world(agents.job)
    assert world is not None
    assert not world.closed
    assert "user" not in world.restarts
    return world.phase


def test_a_worker_that_comes_back_after_its_peers_have_finished_ends_with_0(agents: Agents, server: Server) -> None:
    finished(agents, server, "train-worker-0", "train-worker-2")
    agents.signal("train-worker-1", signal.SIGKILL)
    ends_well(agents, "train-worker-0", "train-worker-2")
    agents.kill_pod("train-worker-1")
    agents.start("train-worker-1")
    ends_well(agents, "train-worker-1")
    assert "ending with status 0: the training has ended" in agents.output("train-worker-1")
    assert "Traceback" not in agents.output("train-worker-1")
    assert phase(server, agents) == "finishing", "its pod has yet to be seen to have ended"


def test_a_worker_that_works_longer_than_its_peers_is_left_alone_and_a_newcomer_waits_for_it(agents: Agents, server: Server) -> None:
    finished(agents, server, "train-worker-0")
    agents.kill_pod("train-worker-1")
    server.expect(agents.job, Expectation(members=(*NAMES, "train-worker-3"), min=2, max=4, budget=Budget(max_restarts=0)))
    agents.start("train-worker-3")
    wait_until(lambda: (world := server.world(agents.job)) is not None and "train-worker-3" in world.waiting, what=agents.describe)
    starts = len(agents.log())
    time.sleep(1)  # in which a new world would begin
    assert agents.processes["train-worker-2"].poll() is None
    assert agents.processes["train-worker-3"].poll() is None
    finish(agents, "train-worker-2")
    ends_well(agents, "train-worker-0", "train-worker-2", "train-worker-3")
    assert len(agents.log()) == starts, "no worker was started again, nor the newcomer's"


def test_a_worker_that_fails_when_too_few_are_left_to_begin_again_does_not_wait_for_ever(agents: Agents, server: Server) -> None:
    (agents.folder / "fail-train-worker-1").touch()
    finished(agents, server, "train-worker-0", "train-worker-2")
    finish(agents, "train-worker-1")
    ends_well(agents, *NAMES)


def test_a_server_that_was_killed_in_between_hears_from_the_controller_that_the_work_is_done(agents: Agents, server: Server) -> None:
    starts = len(agents.log())
    finished(agents, server, "train-worker-0", "train-worker-2")
    agents.signal("train-worker-1", signal.SIGKILL)
    ends_well(agents, "train-worker-0", "train-worker-2")
    agents.kill_pod("train-worker-1")
    server.kill()
    server.start()
    over = ("train-worker-0", "train-worker-2")
    server.expect(agents.job, Expectation(members=NAMES, pending=over, finished=over, min=1, max=4, floor=1, budget=Budget(max_restarts=0)))
    agents.start("train-worker-1")
    ends_well(agents, "train-worker-1")
    assert len(agents.log()) == starts, "it did not train again"
