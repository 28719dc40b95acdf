"""The training script of the replay with the library: the same step as training.py, and no restart. It never ends.

Rank 0 writes a line after each committed step: when it ended, the number of the step, the size of the world.
"""

import os
import pathlib
import sys
import time

import torch

from elastic_worker import Run

folder, step_s = pathlib.Path(sys.argv[1]), float(os.environ.get("SPOT_STEP_S", "0.2"))
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
run = Run(model, optimizer, batch=1)
inputs = torch.ones(1, 16)
with (folder / "work").open("a") as log:
    for step in run.steps(10**9):
        with step:
            time.sleep(step_s)
            run.model(inputs).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if step.is_first_rank:
            log.write(f"{time.time():.4f} {step.number + 1} {run.size}\n")
            log.flush()
