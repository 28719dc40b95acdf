"""Train data-parallel over the workers of a PaddleJob. `python -m paddle.distributed.launch` runs it, and reads what the job sets.

Paddle gives the ranks: worker 0 is rank 0, and the others have any order. The model learns a sine.
"""

from __future__ import annotations

import os

import numpy as np
import paddle
import paddle.distributed as dist

STEPS = int(os.environ.get("STEPS", "200"))


def main() -> None:
    dist.init_parallel_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}", flush=True)
    paddle.seed(0)
    network = paddle.nn.Sequential(paddle.nn.Linear(1, 32), paddle.nn.Tanh(), paddle.nn.Linear(32, 1))
    model = paddle.DataParallel(network)
    optimizer = paddle.optimizer.Adam(learning_rate=0.02, parameters=model.parameters())
    random = np.random.default_rng(rank)
    losses = []
    for _ in range(STEPS):
        points = paddle.to_tensor(random.uniform(-3, 3, size=(64, 1)).astype("float32"))
        loss = paddle.nn.functional.mse_loss(model(points), paddle.sin(points))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    total = paddle.to_tensor([losses[-1]])
    dist.all_reduce(total)
    print(f"trained {STEPS} steps on {world} ranks: loss {losses[0]:.4f} -> {total.item() / world:.4f}", flush=True)


if __name__ == "__main__":
    main()
