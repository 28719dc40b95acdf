"""Train by the library, under real torchrun agents and a real rendezvous server, while workers come and go.

A ledger proves that every sample was used exactly once, and the weights equal those of one undisturbed process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_agents import Agents, Server, serving, wait_until

from elastic.membership.wire import Budget, Expectation, Leaving

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]

SCRIPT = f"""
import json, os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from training_worker import BATCH, Model, Samples
from elastic_worker import Run

steps, pace, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
finish = os.path.join(folder, "finish")
name = os.environ["ELASTIC_MEMBER"]
if os.environ.get("ELASTIC_GENERATION") == "0" and os.path.exists(os.path.join(folder, "no-newcomers")):
    sys.exit(5)
torch.set_num_threads(1)
if "TEST_OLD_TORCH" in os.environ:
    from elastic_worker.training import group

    class Older(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module):
            super().__init__(module)

    group.DistributedDataParallel = Older
model = Model(16, seed=7 if os.environ.get("RANK", "0") == "0" else os.getpid())  # the first world begins with the weights of rank 0
ledger = {{"params": [model.ledger], "lr": float(BATCH), "momentum": 0.0}}
optimizer = torch.optim.SGD([{{"params": model.net.parameters(), "lr": 0.01, "momentum": 0.9}}, ledger])
run = Run(model, optimizer, data=Samples(), batch=BATCH, seed=3)
def form_group(number):
    # A group of the program in the step before a change, if the test asks for it.
    if not os.path.exists(folder + "/group-in-step") or number != int(open(folder + "/group-in-step").read()):
        return
    until = time.monotonic() + 100
    while run._control._change.phase not in ("hold", "stop") and time.monotonic() < until:
        time.sleep(0.01)
    total = torch.ones(1)
    torch.distributed.all_reduce(total, group=torch.distributed.new_group([0, 1]))
    with open(folder + "/groups", "a") as log:
        log.write(f"{{run._control._change.phase}} {{int(total)}}\\n")

last = None
for step in run.steps(steps):
    with step:
        for x, ids in step.batches():
            loss = run.model(x, ids)
            time.sleep(pace)
            form_group(step.number)
            step.backward(loss, samples=len(ids))
        optimizer.step()
        optimizer.zero_grad()
    if run.size == 1 and os.path.exists(finish):
        break
    world = (os.environ.get("ELASTIC_GENERATION"), run.rank, run.size)
    if not step.is_broken and world != last:
        last = world
        with open(folder + "/log", "a") as log:
            log.write(f"{{time.time():.3f}} {{name}} first rank={{run.rank}} size={{run.size}} step={{step.number}}\\n")
        with open(folder + "/pids", "a") as log:
            log.write(f"{{name}} {{os.environ.get('LOCAL_RANK')}} {{os.getpid()}} {{run.size}}\\n")
used = [round(-one) for one in model.ledger.tolist()]
expected = [0] * len(used)
for number in range(run.committed):
    for id in run._loader.sampler.ids(number):
        expected[id] += 1
wrong = sum(one != other for one, other in zip(used, expected))
vector = torch.cat([one.detach().flatten() for one in model.net.parameters()]).tolist()
with open(f"{{folder}}/result-{{name}}-{{os.environ.get('LOCAL_RANK')}}", "w") as file:
    json.dump({{"steps": run.committed, "wrong": wrong, "vector": vector, "size": run.size}}, file)
"""
BUDGET = Budget(max_restarts=8)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


class Job:
    """One job and its agents."""

    def __init__(self, server: Server, folder: Path, *, steps: int = 5000, pace_s: float = 0.1, library: Path | None = None) -> None:
        self.server = server
        self.agents = Agents(folder, server, job="0d9f5b1e-job", steps=steps, pace_s=pace_s, script=SCRIPT, library=library)

    def expect(self, *members: str, **fields: object) -> None:
        expectation = Expectation(members=members, **{"min": 1, "max": 8, "budget": BUDGET, **fields})  # type: ignore[arg-type]
        self.server.expect(self.agents.job, expectation)

    def start(self, *members: str, workers: int = 1) -> float:
        at = time.time()
        for name in members:
            self.agents.start(name, workers=workers)
        return at

    def pid(self, name: str, local_rank: int = 0) -> int:
        """Return the process of this worker that trained last."""
        lines = [line.split() for line in (self.agents.folder / "pids").read_text().splitlines()]
        return int([line for line in lines if line[:2] == [name, str(local_rank)]][-1][2])

    def ends(self, *members: str, size: int) -> None:
        """Wait until the job has ended well, and compare the results of its workers with an undisturbed training."""
        for name in members:
            process = self.agents.processes[name]
            wait_until(lambda: process.poll() is not None, what=lambda: f"{name} ends\n{self.agents.describe()}")  # noqa: B023
            assert process.returncode == 0, self.agents.describe()
        results = [json.loads(path.read_text()) for path in self.agents.folder.glob("result-*")]
        assert len(results) == size, self.agents.describe()
        assert {(result["steps"], result["wrong"]) for result in results} == {(results[0]["steps"], 0)}
        vector = undisturbed(results[0]["steps"], self.agents.folder / "alone")
        assert max(abs(a - b) for result in results for a, b in zip(result["vector"], vector, strict=True)) < 1e-12

    def finish(self) -> None:
        """Let the last worker end its loop."""
        (self.agents.folder / "finish").touch()

    def restarts(self) -> dict[str, int]:
        world = self.server.world(self.agents.job)
        return dict(world.restarts) if world is not None else {}

    def phase(self) -> str:
        world = self.server.world(self.agents.job)
        return world.phase if world is not None else ""


def undisturbed(steps: int, folder: Path) -> list[float]:
    """Return the weights after so many steps in one process."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, str(folder / "train.py"), str(steps), "0", str(folder)], env={**os.environ, "ELASTIC_MEMBER": "alone"}, check=True
    )
    result = json.loads((folder / "result-alone-None").read_text())
    assert (result["steps"], result["wrong"]) == (steps, 0)
    return list(result["vector"])


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


def test_all_workers_of_the_first_agent_begin_with_the_same_weights(tmp_path: Path, server: Server) -> None:
    """Both workers of the first agent were donors of the first world, so each one trained on from its own random weights."""
    job = Job(server, tmp_path / "job", steps=40)
    try:
        job.expect("w0", "w1", min=2)
        job.start("w0", "w1", workers=2)
        job.ends("w0", "w1", size=4)
    finally:
        job.agents.stop()


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
