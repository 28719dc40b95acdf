"""The training script of the replay with real processes: a step is a short wait and a reduction, a checkpoint follows each. It never ends.

Rank 0 writes a line after each step: when it ended, the number of the step, the size of the world. Each process writes one when it begins.
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

folder, step_s = pathlib.Path(sys.argv[1]), float(os.environ.get("SPOT_STEP_S", "0.2"))
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
checkpoint = folder / "checkpoint"
state = torch.zeros(16)
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
agreed = torch.tensor([step])
dist.broadcast(agreed, src=0)
step = int(agreed)
with (folder / "work").open("a") as log:
    while True:
        time.sleep(step_s)
        dist.all_reduce(state)
        step += 1
        if rank == 0:
            checkpoint.with_suffix(".draft").write_text(str(step))
            checkpoint.with_suffix(".draft").replace(checkpoint)
            log.write(f"{time.time():.4f} {step} {size}\n")
            log.flush()
