"""The training script of the benchmark: small, data-parallel, with an optimizer and a checkpoint after each step. It never ends by itself.

Each process writes a line when it begins (time, agent, 1 if torch was there already) and one when it has taken the first step of its world
(time, agent, size of the world).
"""

import os
import pathlib
import sys
import time

is_warm = "torch" in sys.modules

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

folder, agent = pathlib.Path(sys.argv[1]), os.environ["BENCH_AGENT"]


def tell(what: str, size: int) -> None:
    with (folder / "steps").open("a") as log:
        log.write(f"{time.time():.4f} {what} {agent} {size}\n")


tell("script", int(is_warm))
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
checkpoint = folder / "checkpoint"
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
if checkpoint.exists():
    model.load_state_dict(torch.load(checkpoint, weights_only=True))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
inputs = torch.randn(8, 16)
step = 0
while True:
    optimizer.zero_grad()
    (parallel(inputs) ** 2).mean().backward()
    optimizer.step()
    step += 1
    if step == 1:
        tell("first", size)
    if rank == 0:
        torch.save(model.state_dict(), checkpoint.with_suffix(".draft"))
        checkpoint.with_suffix(".draft").replace(checkpoint)
    crash = folder / f"crash-{agent}"
    if crash.exists():
        crash.unlink()
        tell("crash", size)
        os._exit(3)
    time.sleep(0.05)
