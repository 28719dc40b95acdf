"""The training script of the benchmark with our library, so that its processes live on while the world changes. It never ends by itself.

It writes the same lines as training.py: one when the process begins, and one after the first step of each world.
"""

import os
import pathlib
import sys
import time

is_warm = "torch" in sys.modules

import torch  # noqa: E402

from elastic_worker import Run  # noqa: E402

folder, agent = pathlib.Path(sys.argv[1]), os.environ["BENCH_AGENT"]


def tell(what: str, size: int) -> None:
    with (folder / "steps").open("a") as log:
        log.write(f"{time.time():.4f} {what} {agent} {size}\n")


tell("script", int(is_warm))
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = Run(model, optimizer, data=torch.utils.data.TensorDataset(torch.randn(4096, 16)), batch=8, seed=0)
world = None
for step in run.steps(10**9):
    with step:
        for (inputs,) in step.batches():
            step.backward((run.model(inputs) ** 2).mean(), samples=len(inputs))
        optimizer.step()
        optimizer.zero_grad()
    present = (os.environ.get("ELASTIC_GENERATION"), run.size)
    if not step.is_broken and present != world:
        world = present
        tell("first", run.size)
    crash = folder / f"crash-{agent}"
    if crash.exists():
        crash.unlink()
        tell("crash", run.size)
        os._exit(3)
    time.sleep(0.05)
