"""Train data-parallel over a PyTorchJob's Master and Worker replicas, with one process in each pod.

init_process_group reads the variables that the job sets: MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.
The model learns the sign of a product, which no linear model can.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch._dynamo  # before the first DistributedDataParallel, which imports it otherwise and then keeps its process group for ever
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "300"))
LOST_AFTER = timedelta(seconds=120)
"""Sometimes nothing else notices a peer that was lost or started again, and torch's own limit is half an hour."""


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of one step. Ranks get different points, and each run gets the same ones."""
    points = torch.rand(64, 2, generator=torch.Generator().manual_seed(step * 1000 + rank)) * 2 - 1
    return points, (points.prod(1, keepdim=True) > 0).float()


def train() -> None:
    """Train. The model's wrapper holds the process group, and is gone when this returns."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    print(f"rank {rank} of {world}", flush=True)
    for step in range(1, STEPS + 1):
        points, labels = batch(step, rank)
        loss = nn.functional.binary_cross_entropy_with_logits(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    points, labels = batch(0, rank)
    right = ((model(points) > 0) == (labels > 0)).float().mean()
    dist.all_reduce(right)
    print(f"accuracy {right.item() / world:.3f} over {world} ranks", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=LOST_AFTER)
    train()
    # A DistributedDataParallel (or a loss, or a Work) that outlives destroy_process_group() can make torch hang or abort at the end of a
    # gloo job. Here they were train()'s, and train() has returned; in one function, `del model, loss` does it.
    dist.barrier()  # nobody goes while others still talk to the store that rank 0 holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
