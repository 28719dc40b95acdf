"""A job whose workers change worlds in process, under real torchrun agents and a real rendezvous server.

A ledger proves that every sample was used exactly once, and the weights equal those of one undisturbed process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torch_agents import Agents, Server, wait_until

from elastic.membership.wire import Budget, Expectation

SCRIPT = f"""
import atexit, json, os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from training_worker import BATCH, Model, Samples
from elastic_worker import Pod, Run

steps, pace, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
finish = os.path.join(folder, "finish")
name = os.environ["ELASTIC_MEMBER"]
if os.environ.get("ELASTIC_GENERATION") == "0" and os.path.exists(os.path.join(folder, "no-newcomers")):
    sys.exit(5)
torch.set_num_threads(1)
device = torch.device(os.environ.get("TEST_DEVICE", "cpu"))
os.environ["NCCL_HOSTID"] = f"worker-{{os.getpid()}}"  # NCCL refuses two ranks on one GPU, unless it takes them for two hosts
if "TEST_OLD_TORCH" in os.environ:
    from elastic_worker.training import whole as replicas

    class Older(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module):
            super().__init__(module)

    replicas.DistributedDataParallel = replicas._Wrapper = Older
count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
is_first = int(os.environ.get("RANK", "0")) < (count if "SHARDED" in os.environ else 1)
model = Model(16, seed=7 if is_first else os.getpid()).to(device)  # the first world begins with the weights of the first replica
pod = None
if "SHARDED" in os.environ:
    from torch.distributed.fsdp import fully_shard
    pod = Pod(device=device.type)
    for layer in model.net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=pod.mesh)
    fully_shard(model, mesh=pod.mesh)
ledger = {{"params": [model.ledger], "lr": float(BATCH), "momentum": 0.0}}
optimizer = torch.optim.SGD([{{"params": model.net.parameters(), "lr": 0.01, "momentum": 0.9}}, ledger])
run = Run(model, optimizer, data=Samples(), batch=BATCH, seed=3, shards=pod, save=os.environ.get("SAVES"),
          save_every_s=float(os.environ.get("SAVE_EVERY_S", "0.5")))
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

is_failing = False
atexit.register(lambda: time.sleep(3 * is_failing))  # as a logger that flushes at exit
def fail():
    # Raise once if the test asks for it.
    global is_failing
    if os.path.exists(folder + "/raise-" + name):
        os.remove(folder + "/raise-" + name)
        is_failing = True
        raise ValueError("bad batch")
    if os.path.exists(folder + "/exit-" + name):
        os.remove(folder + "/exit-" + name)
        sys.exit(0)

last = None
for step in run.steps(steps):
    with step:
        for x, ids in step.batches():
            loss = run.model(x.to(device), ids.to(device))
            time.sleep(pace)
            form_group(step.number)
            fail()
            step.backward(loss, samples=len(ids))
        optimizer.step()
        optimizer.zero_grad()
    ends = run.size == (pod.count if pod else 1) and os.path.exists(finish)
    if pod.agree(ends) if pod else ends:
        break
    world = (os.environ.get("ELASTIC_GENERATION"), run.rank, run.size)
    if not step.is_broken and world != last:
        last = world
        with open(folder + "/log", "a") as log:
            log.write(f"{{time.time():.3f}} {{name}} first rank={{run.rank}} size={{run.size}} step={{step.number}}\\n")
        with open(folder + "/pids", "a") as log:
            log.write(f"{{name}} {{os.environ.get('LOCAL_RANK')}} {{os.getpid()}} {{run.size}}\\n")
def whole(one):
    return (one.full_tensor() if pod else one).detach().cpu()
used = [round(-one) for one in whole(model.ledger).tolist()]
expected = [0] * len(used)
for number in range(run.committed):
    for id in run._loader.sampler.ids(number):
        expected[id] += 1
wrong = sum(one != other for one, other in zip(used, expected))
vector = torch.cat([whole(one).flatten() for one in model.net.parameters()]).tolist()
with open(f"{{folder}}/result-{{name}}-{{os.environ.get('LOCAL_RANK')}}", "w") as file:
    json.dump({{"steps": run.committed, "wrong": wrong, "vector": vector, "size": run.size}}, file)
"""
BUDGET = Budget(max_restarts=8)


class Training:
    """The agents of one job, and the results of its workers."""

    def __init__(self, agents: Agents, **environment: str) -> None:
        self.agents = agents
        self._environment = environment

    def start(self, *members: str, workers: int = 1) -> float:
        at = time.time()
        for name in members:
            self.agents.start(name, workers=workers, **self._environment)
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
        compare(results, self.agents.folder / "alone")

    def finish(self) -> None:
        """Let the last worker end its loop."""
        (self.agents.folder / "finish").touch()


class Job(Training):
    """One job that meets at a rendezvous server."""

    def __init__(
        self, server: Server, folder: Path, *, steps: int = 5000, pace_s: float = 0.1, library: Path | None = None, **environment: str
    ) -> None:
        agents = Agents(folder, server, job="0d9f5b1e-job", steps=steps, pace_s=pace_s, script=SCRIPT, library=library)
        super().__init__(agents, **environment)
        self.server = server

    def expect(self, *members: str, **fields: object) -> None:
        expectation = Expectation(members=members, **{"min": 1, "max": 8, "budget": BUDGET, **fields})  # type: ignore[arg-type]
        self.server.expect(self.agents.job, expectation)

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


def compare(results: list[dict[str, Any]], folder: Path) -> None:
    """Compare results of workers with an undisturbed training."""
    vector = undisturbed(results[0]["steps"], folder)
    assert max(abs(a - b) for result in results for a, b in zip(result["vector"], vector, strict=True)) < 1e-12
