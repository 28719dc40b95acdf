"""Train elastically and data-parallel, with checkpoints on a volume that all workers share.

torchrun starts it. Rank 0 saves every SAVE_EVERY steps, before the world changes, and when its worker must go soon. A world goes on from
the newest checkpoint that can be read, also after a suspension or the loss of all workers at once.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import signal
import time
import zipfile

import torch
import torch._dynamo  # before the first DistributedDataParallel: see examples/pytorch-elastic
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

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
is_asked_to_stop = False


def on_sigterm(signum: int, frame: object) -> None:
    """Note that the world changes or the pod ends. The step in flight is finished and saved."""
    global is_asked_to_stop
    is_asked_to_stop = True


def save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, why: str) -> None:
    """Write a file that gets its name once it is whole and on the disk. Remove older files after that."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"step-{step:09}.pt"
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    for old in sorted(CHECKPOINTS.glob("step-*.pt"))[:-KEEP]:
        old.unlink(missing_ok=True)
    print(f"saved step {step}: {why}", flush=True)


def newest() -> dict | None:
    """Return the newest checkpoint that can be read. Skip one that a full or failing disk cut off."""
    for path in sorted(CHECKPOINTS.glob("step-*.pt"), reverse=True):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            print(f"passes over {path.name}: {str(error).splitlines()[0]}", flush=True)
    return None


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint and return the step to go on from. Rank 0 reads it for all, so that all begin with the same state."""
    state = [newest() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(state, src=0)
    if state[0] is None:
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["step"]


def on_any_rank(flag: bool) -> bool:
    """Return whether the flag is set on any rank. All ranks learn it at the same step, so none waits for another in the next step."""
    seen = torch.tensor([int(flag)])
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return bool(seen)


def stop() -> None:
    """End once SIGTERM came to this rank too. A rank that ended before its own SIGTERM would count as failed."""
    deadline = time.monotonic() + 10
    while not is_asked_to_stop and time.monotonic() < deadline:
        time.sleep(0.05)
    raise SystemExit(143)


def train() -> int:
    """Train to the end and return the last step. The objects that hold the process group are gone when this returns."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    truth = torch.randn(16, 1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    step = restore(model, optimizer)
    parallel = DistributedDataParallel(model)
    print(f"world {world} rank {rank} starts at step {step}", flush=True)
    was_warned = False
    while step < STEPS:
        batch = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
        loss = torch.nn.functional.mse_loss(parallel(batch), batch @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        answer = report(step, loss=loss.item()) if rank == 0 else None
        left_s = answer.checkpoint_s if answer else None
        if on_any_rank(is_asked_to_stop):
            if rank == 0:
                save(step, model, optimizer, "the world changes")
            stop()
        if rank == 0:
            print(f"step {step} world {world} loss {loss.item():.6f}", flush=True)
            if left_s is not None and not was_warned:
                save(step, model, optimizer, f"this worker has {left_s:.0f} s left")
            elif step % SAVE_EVERY == 0 or step == STEPS:
                save(step, model, optimizer, "as planned")
        was_warned = left_s is not None
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
    return step


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, on_sigterm)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step = train()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done at step {step}", flush=True)


if __name__ == "__main__":
    main()
