"""Elastic training with Horovod: the state is committed every few steps, and goes on with more or fewer workers.

horovodrun starts it in each worker, and gets the list of hosts from the job.
"""

from __future__ import annotations

import os
import time

import horovod.torch as hvd
import torch

STEPS = int(os.environ.get("STEPS", "300"))
STEP_S = float(os.environ.get("STEP_S", "0.1"))
COMMIT_EVERY = 5
"""A commit is also when workers notice that hosts were added or removed."""


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, truth: torch.Tensor) -> None:
    while state.step < STEPS:
        rows = torch.randn(32, len(truth))
        state.optimizer.zero_grad()
        loss = ((state.model(rows).squeeze(1) - rows @ truth) ** 2).mean()
        loss.backward()
        state.optimizer.step()
        state.step += 1
        time.sleep(STEP_S)
        if hvd.rank() == 0:
            print(f"step {state.step} in a world of {hvd.size()} loss {loss.item():.5f}", flush=True)
        if state.step % COMMIT_EVERY == 0:
            state.commit()


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    truth, model = torch.randn(8), torch.nn.Linear(8, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters())
    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0), truth)


if __name__ == "__main__":
    main()
