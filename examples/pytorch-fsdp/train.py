"""Elastic training of a fully sharded model (FSDP2): each rank holds a shard of the parameters and of the optimizer's state.

Run by torchrun. A shard is lost with its rank, so all ranks together write a checkpoint to a volume that they share
(torch.distributed.checkpoint): every SAVE_EVERY steps, before the world changes, and when a worker must go soon. A world of any size reads
it in its own shards.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import time

import torch
import torch._dynamo  # before anything imports it that holds the process group: see examples/pytorch-elastic
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

try:
    from elastic_worker.report import report
except ImportError:  # this container has no elastic_worker

    def report(step: int, **values: float) -> None:
        """Do nothing."""


CHECKPOINTS = pathlib.Path(os.environ.get("CHECKPOINT_DIR", "/checkpoints"))
STEPS = int(os.environ.get("STEPS", "600"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "50"))
KEEP = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
is_asked_to_stop = False


def on_sigterm(signum: int, frame: object) -> None:
    """Note that the world changes or the pod ends. The step in flight is finished and saved."""
    global is_asked_to_stop
    is_asked_to_stop = True


class Training:
    """All that a checkpoint holds. Its tensors are shards, which torch.distributed.checkpoint cuts again for the world that reads them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def sharded_model() -> torch.nn.Module:
    """Return the sharded model. Each layer is sharded separately, then the rest, so that parameters are gathered layer by layer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(layer for _ in range(3) for layer in (torch.nn.Linear(16, 16), torch.nn.Tanh())), torch.nn.Linear(16, 1))
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for layer in model.to(DEVICE):
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole_checkpoints() -> list[pathlib.Path]:
    """Return the whole checkpoints, the oldest first. A checkpoint gets its file .metadata last."""
    return sorted(path.parent for path in CHECKPOINTS.glob("step-*/.metadata"))


def save(training: Training, why: str) -> None:
    """Save a checkpoint. All ranks call this at the same step."""
    dcp.save({"training": training}, checkpoint_id=CHECKPOINTS / f"step-{training.step:09}")
    if dist.get_rank() == 0:
        kept = whole_checkpoints()[-KEEP:]
        for folder in CHECKPOINTS.glob("step-*"):
            if folder < kept[0]:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"saved step {training.step} of world {dist.get_world_size()}: {why}", flush=True)


def restore(training: Training) -> None:
    """Load the newest checkpoint. Rank 0 finds it, and all ranks read it."""
    found = [next(reversed(whole_checkpoints()), None) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is not None:
        dcp.load({"training": training}, checkpoint_id=found[0])


def on_any_rank(*flags: bool) -> list[bool]:
    """Return the flags that any rank has raised. All ranks learn it at the same step, so that they save together."""
    seen = torch.tensor([int(flag) for flag in flags])
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in seen]


def stop() -> None:
    """End once SIGTERM came to this rank too. A rank that ended before its own SIGTERM would count as failed."""
    deadline = time.monotonic() + 10
    while not is_asked_to_stop and time.monotonic() < deadline:
        time.sleep(0.05)
    raise SystemExit(143)


def train() -> int:
    """Train to the end; returns the last step. When this has returned, nothing but DTensor's own caches holds the process group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = sharded_model()
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    restore(training)
    own, all_ = (sum(sizes) for sizes in zip(*((p.to_local().numel(), p.numel()) for p in model.parameters()), strict=True))
    print(f"world {world} rank {rank} starts at step {training.step} with {own} of {all_} parameters", flush=True)
    was_warned = False
    while training.step < STEPS:
        rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(training.step * 1000 + rank)).to(DEVICE)
        loss = torch.nn.functional.mse_loss(model(rows), (rows.sum(1, keepdim=True) / 2).tanh())
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.step += 1
        if rank == 0:
            print(f"step {training.step} world {world} loss {loss.item():.6f}", flush=True)
        answer = report(training.step, loss=loss.item())
        must_stop, is_warned = on_any_rank(is_asked_to_stop, answer is not None and answer.checkpoint_s is not None)
        if must_stop:
            save(training, "the world changes")
            stop()
        if is_warned and not was_warned:
            save(training, "a worker must go soon")
        elif training.step % SAVE_EVERY == 0 or training.step == STEPS:
            save(training, "as planned")
        was_warned = is_warned
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
    return training.step


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, on_sigterm)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")
    rank = dist.get_rank()
    step = train()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done at step {step}", flush=True)


if __name__ == "__main__":
    main()
