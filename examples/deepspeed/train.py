"""Elastic training with DeepSpeed: ZeRO stage 2 shards gradients and the optimizer's state.

Run by torchrun, not by the launcher `deepspeed`, which wants a fixed list of hosts. A shard is lost with its rank, so all ranks together
write a checkpoint to a volume that they share: every SAVE_EVERY steps, before the world changes, and when a worker must go soon. DeepSpeed
reads a checkpoint in a world of another size only as a "universal" one, to which rank 0 converts it when a world starts.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import deepspeed
import torch
import torch.distributed as dist

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
CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "bf16": {"enabled": torch.cuda.is_available()},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "checkpoint": {"load_universal": True},
}
is_asked_to_stop = False


def on_sigterm(signum: int, frame: object) -> None:
    """Note that the world changes or the pod ends. The step in flight is finished and saved."""
    global is_asked_to_stop
    is_asked_to_stop = True


def whole_checkpoints() -> list[pathlib.Path]:
    """Return the whole checkpoints, the oldest first. A checkpoint has the file `whole` once all ranks have written their parts."""
    return sorted(path.parent for path in CHECKPOINTS.glob("step-*/whole"))


def save(engine: deepspeed.DeepSpeedEngine, why: str) -> None:
    """Save a checkpoint. All ranks call this at the same step. A conversion uses all parts, so those of a lost world must go."""
    checkpoint = CHECKPOINTS / f"step-{engine.global_steps:09}"
    if dist.get_rank() == 0:
        shutil.rmtree(checkpoint, ignore_errors=True)
    dist.barrier()
    engine.save_checkpoint(CHECKPOINTS, tag=checkpoint.name)
    dist.barrier()
    if dist.get_rank() == 0:
        (checkpoint / "whole").touch()
        kept = whole_checkpoints()[-KEEP:]
        for folder in CHECKPOINTS.glob("step-*"):
            if folder < kept[0]:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"saved step {engine.global_steps} of world {dist.get_world_size()}: {why}", flush=True)


def universal(checkpoint: pathlib.Path) -> str:
    """Return the checkpoint's name as a universal one. It appears once the conversion is complete."""
    made = checkpoint.with_name(checkpoint.name + "-universal")
    if not made.exists():
        draft = checkpoint.with_name(checkpoint.name + "-new")
        shutil.rmtree(draft, ignore_errors=True)
        convert = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
        subprocess.run([*convert, "--input_folder", checkpoint, "--output_folder", draft], check=True, stdout=subprocess.DEVNULL)
        draft.rename(made)
    return made.name


def restore(engine: deepspeed.DeepSpeedEngine) -> None:
    """Load the newest checkpoint. Rank 0 finds it, and all ranks read it."""
    found = [universal(whole_checkpoints()[-1]) if dist.get_rank() == 0 and whole_checkpoints() else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is not None:
        engine.load_checkpoint(CHECKPOINTS, tag=found[0])


def on_any_rank(engine: deepspeed.DeepSpeedEngine, *flags: bool) -> list[bool]:
    """Return the flags that any rank has raised. All ranks learn it at the same step, so that they save together."""
    seen = torch.tensor([int(flag) for flag in flags], device=engine.device)
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in seen]


def stop() -> None:
    """End once SIGTERM came to this rank too. A rank that ended before its own SIGTERM would count as failed."""
    deadline = time.monotonic() + 10
    while not is_asked_to_stop and time.monotonic() < deadline:
        time.sleep(0.05)
    raise SystemExit(143)


def train() -> int:
    """Train to the end; returns the last step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    restore(engine)
    print(f"world {world} rank {rank} starts at step {engine.global_steps}", flush=True)
    was_warned = False
    while engine.global_steps < STEPS:
        rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(engine.global_steps * 1000 + rank)).to(engine.device)
        rows = rows.to(next(engine.parameters()).dtype)
        loss = torch.nn.functional.mse_loss(engine(rows), (rows.sum(1, keepdim=True) / 2).tanh())
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step {engine.global_steps} world {world} loss {loss.item():.6f}", flush=True)
        answer = report(engine.global_steps, loss=loss.item())
        must_stop, is_warned = on_any_rank(engine, is_asked_to_stop, answer is not None and answer.checkpoint_s is not None)
        if must_stop:
            save(engine, "the world changes")
            stop()
        if is_warned and not was_warned:
            save(engine, "a worker must go soon")
        elif engine.global_steps % SAVE_EVERY == 0 or engine.global_steps == STEPS:
            save(engine, "as planned")
        was_warned = is_warned
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
    engine.destroy()
    return engine.global_steps


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, on_sigterm)
    deepspeed.init_distributed()
    rank = dist.get_rank()
    step = train()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done at step {step}", flush=True)


if __name__ == "__main__":
    main()
