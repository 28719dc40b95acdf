"""Elastic training whose checkpoints are expensive: it saves every SAVE_EVERY steps, and at once when its machine is about to go.

Run by torchrun. Each rank reports its steps; the answer says how many seconds are left on this machine (`checkpoint_s`). Each rank keeps
its checkpoint in its pod's temporary folder; when a world forms, the rank with the newest one brings the others up to date. With shared
storage for CHECKPOINT_DIR nothing is lost either when all machines go at once.
"""

from __future__ import annotations

import os
import pathlib
import signal
import tempfile
import time

import torch
import torch._dynamo  # before the first DistributedDataParallel: see examples/pytorch-elastic
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elastic_worker.report import report

STEPS = int(os.environ.get("STEPS", "3000"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "50"))
CHECKPOINT = pathlib.Path(os.environ.get("CHECKPOINT_DIR", tempfile.gettempdir())) / f"spot-{os.environ.get('LOCAL_RANK', '0')}.pt"
is_asked_to_stop = False


def on_sigterm(signum: int, frame: object) -> None:
    """Note that the world changes or the pod ends. The step in flight is finished and saved, if the peers let it."""
    global is_asked_to_stop
    is_asked_to_stop = True


def save(step: int, model: torch.nn.Module, why: str) -> None:
    """Write next to the old checkpoint and rename: a worker killed here leaves a whole file."""
    fresh = CHECKPOINT.with_suffix(".new")
    torch.save({"step": step, "model": model.state_dict()}, fresh)
    fresh.replace(CHECKPOINT)
    print(f"saved step {step}: {why}", flush=True)


def restore(model: torch.nn.Module) -> int:
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
    return newest


def train() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    step = restore(model)
    parallel = DistributedDataParallel(model)
    print(f"world {world} rank {rank} starts at step {step}", flush=True)
    was_warned = False
    while step < STEPS:
        loss = parallel(torch.ones(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        answer = report(step, loss=loss.item())
        if is_asked_to_stop:
            save(step, model, "asked to stop")
            raise SystemExit(143)
        if answer.checkpoint_s is not None and not was_warned:
            save(step, model, f"this machine has {answer.checkpoint_s:.0f} s left")
        elif step % SAVE_EVERY == 0:
            save(step, model, "as always")
        was_warned = answer.checkpoint_s is not None
        time.sleep(STEP_SECONDS)  # in place of a larger model's work


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, on_sigterm)
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
