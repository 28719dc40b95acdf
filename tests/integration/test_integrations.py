"""Several ranks agree when to save and when to stop, under real torchrun agents and with real gloo."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_agents import Agents, Server, wait_until

from elastic.membership.wire import Expectation

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from elastic_worker.integrations.agreement import Agreement

state = os.path.join(sys.argv[3], "state")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
step = int(open(state).read()) if os.path.exists(state) else 0
ranks = Agreement()
ranks.begin(step)  # before the line that the test waits for: until then SIGTERM ends the process at once
print(f"world {size} nodes {os.environ['PL_TRAINER_NUM_NODES']} begins after step {step}", flush=True)
while True:
    dist.all_reduce(torch.ones(4))
    step += 1
    verdict = ranks.after_step(step, "cpu", dict)
    if verdict.save:
        print(f"rank {rank} of {size} saves step {step}", flush=True)
        if rank == 0:
            with open(state + ".new", "w") as file:
                file.write(str(step))
            os.replace(state + ".new", state)
    if verdict.stop:
        ranks.leave()
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def agents(tmp_path: Path, server: Server) -> Iterator[Agents]:
    made = Agents(tmp_path / "job", server, job="job", script=SCRIPT, pace_s=0.01)
    yield made
    made.stop()


def begun(agents: Agents, name: str, size: int) -> list[int]:
    """Return the steps after which worlds of this size began, as a worker said."""
    return [int(step) for step in re.findall(rf"world {size} nodes {size} begins after step (\d+)", agents.output(name))]


def saved(agents: Agents, name: str, size: int) -> list[int]:
    return [int(step) for step in re.findall(rf"rank \d of {size} saves step (\d+)", agents.output(name))]


def test_all_ranks_save_after_the_same_step_before_a_planned_change(agents: Agents, server: Server) -> None:
    """The agent tells Lightning the size of each world, and the next world goes on where the last one stopped."""
    server.expect("job", Expectation(members=("a",), max=2))
    with server.listening():
        agents.start("a")
        wait_until(lambda: bool(begun(agents, "a", 1)), what=agents.describe)
        server.expect("job", Expectation(members=("a", "b"), max=2))
        agents.start("b")
        wait_until(lambda: all(begun(agents, name, 2) for name in "ab"), what=agents.describe)
        assert begun(agents, "a", 2) == begun(agents, "b", 2) == saved(agents, "a", 1)
        agents.signal("b", signal.SIGTERM)
        wait_until(lambda: len(begun(agents, "a", 1)) == 2, what=agents.describe)
        assert saved(agents, "a", 2) == saved(agents, "b", 2) == begun(agents, "a", 1)[1:]
        assert begun(agents, "a", 1)[1] > begun(agents, "a", 2)[0]


def test_a_value_of_the_user_for_lightning_stays(agents: Agents, server: Server) -> None:
    server.expect("job", Expectation(members=("a",)))
    with server.listening():
        agents.start("a", PL_TRAINER_NUM_NODES="7")
        wait_until(lambda: "world 1 nodes 7 begins" in agents.output("a"), what=agents.describe)


PEER = """
import sys
import torch.distributed as dist
from elastic_worker.integrations.agreement import Agreement, newest_of_all
from elastic_worker.report import Answer

class Told:
    is_heard = True
    def send(self, step, **values):
        return Answer(checkpoint_s=30.0) if rank == 1 and step >= 5 else Answer()

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
print(newest_of_all([10, 20, 30] if rank == 0 else [20, 10]))
now = 0.0
def clock():  # the steps of rank 1 seem to be fast: rank 0 decides when they agree again
    global now
    now += 1.0 if rank == 0 else 0.001
    return now
ranks = Agreement(Told(), clock=clock)
ranks.begin(0)
print([step for step in range(1, 20) if ranks.after_step(step, "cpu", dict).save])
ranks.abandon()
dist.destroy_process_group()
"""


def test_a_notice_to_one_rank_makes_all_save_after_the_same_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PEER]
    peers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], cwd=ROOT, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    said = [peer.communicate(timeout=200)[0].splitlines() for peer in peers]
    assert said[0] == said[1] == ["(20, 30)", "[5]"]
