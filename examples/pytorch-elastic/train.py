"""Elastic data-parallel training that loses nothing but the step in flight when the world changes.

Run by torchrun. Every rank keeps its own checkpoint in its pod's temporary folder, which outlives a restart of the worker process;
when a world forms, the rank with the newest one brings the others up to date. No shared storage is needed as long as one worker
of the last world lives.
The model learns a fixed linear function, so a falling loss shows that nothing was forgotten.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time

import torch
import torch._dynamo  # before the first DistributedDataParallel, which imports it otherwise and then keeps its process group for ever
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:
    from elastic_worker.report import report
except ImportError:  # this container has no elastic_worker

    def report(step: int, **values: float) -> None:
        """Do nothing."""


STEPS = int(os.environ.get("STEPS", "400"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "0.02"))
STOP_FILE = os.environ.get("STOP_FILE", "")  # on a volume of all workers; with it, STEPS is only the least number of steps
CHECKPOINT = pathlib.Path(os.environ.get("CHECKPOINT_DIR", tempfile.gettempdir())) / f"checkpoint-{os.environ.get('LOCAL_RANK', '0')}.pt"


def save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write next to the old checkpoint and rename: a worker killed here leaves a whole file."""
    fresh = CHECKPOINT.with_suffix(".new")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
    fresh.replace(CHECKPOINT)


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Give every rank the newest state that any rank has. Return the step to go on from."""
    own = torch.load(CHECKPOINT, weights_only=True) if CHECKPOINT.exists() else None
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([own["step"] if own else 0]))
    newest = max(int(step) for step in steps)
    if newest == 0:
        return 0
    source = [int(step) for step in steps].index(newest)
    state = [own if dist.get_rank() == source else None]
    dist.broadcast_object_list(state, src=source)
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return newest


def is_over(step: int) -> bool:
    """Return whether training ends. Rank 0 looks for the file and tells the others, so that all end at the same step."""
    if step < STEPS or not STOP_FILE:
        return step >= STEPS
    seen = torch.tensor([int(dist.get_rank() == 0 and os.path.exists(STOP_FILE))])
    dist.broadcast(seen, src=0)
    return bool(seen)


def train() -> int:
    """Train to the end and return the last step. The model's wrapper holds the process group, and is gone when this returns."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    truth = torch.randn(16, 1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.5)
    step = restore(model, optimizer)
    parallel = DistributedDataParallel(model)
    print(f"world {world} rank {rank} starts at step {step}", flush=True)
    while not is_over(step):
        batch = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
        loss = torch.nn.functional.mse_loss(parallel(batch), batch @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        save(step, model, optimizer)
        if rank == 0:
            print(f"step {step} world {world} loss {loss.item():.6f}", flush=True)
            report(step, loss=loss.item())
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
    return step


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step = train()
    # A DistributedDataParallel (or a loss, or a Work) that outlives destroy_process_group() can make torch hang or abort at the end of a
    # gloo job. Here they were train()'s, and train() has returned; in one function, `del parallel, loss` does it.
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done at step {step}", flush=True)


if __name__ == "__main__":
    main()
