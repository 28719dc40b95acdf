"""Elastic data-parallel training in which no process restarts, and no step is lost, when workers come and go.

Run by torchrun. The workers that stay keep their model, their optimizer and their imports; a newcomer gets the state from one of them.
Every sample is used once per epoch at every size of the world, and the batch of a step is the same at every size.
The model learns a fixed linear function, so a falling loss shows that nothing was forgotten.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from elastic_worker import Run

STEPS = int(os.environ.get("STEPS", "400"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "0.02"))
STOP_FILE = os.environ.get("STOP_FILE", "")  # where rank 0 can see it; without it STEPS is the end, with it the least
CHECKPOINT_DIR = os.environ.get("CHECKPOINT_DIR")  # a folder or URL that all workers see, for the case that all of them are lost


def is_over(step: int) -> bool:
    """Return whether training ends after this step. All workers have to end at the same step, so rank 0 looks for all."""
    if step < STEPS or not STOP_FILE:
        return step >= STEPS
    seen = torch.tensor([int(os.path.exists(STOP_FILE))])
    if dist.is_initialized():
        dist.broadcast(seen, src=0)
    return bool(seen)


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3200, 16, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs @ torch.randn(16, 1, generator=generator))
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.5)
    run = Run(model, optimizer, data=data, batch=96, save=CHECKPOINT_DIR)
    world = None
    for step in run.steps(10**9):
        with step:
            for x, y in step.batches():
                loss = torch.nn.functional.mse_loss(run.model(x), y)
                step.backward(loss, samples=len(x))
            optimizer.step()
            optimizer.zero_grad()
            value = loss.item()
            del loss  # it would keep the process group of this world
            step.report(loss=value)
            has_ended = is_over(step.number + 1)
        if step.is_first_rank and world != run.size:
            world = run.size
            print(f"world {run.size} rank 0 starts at step {step.number}", flush=True)
        if step.is_first_rank:
            print(f"step {step.number + 1} world {run.size} loss {value:.6f}", flush=True)
        if has_ended:
            break
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
    print(f"rank {run.rank} done at step {run.committed}", flush=True)


if __name__ == "__main__":
    main()
