"""Elastic training of a sharded model (FSDP2) in which no process restarts, and no step is lost, when pods come and go.

Run by torchrun. The workers of a pod share one replica of the model: each holds a shard of every layer and of the optimizer's state. Pods
are the replicas. The pods that stay keep their shards, and each worker of a new pod gets its shard from a worker of another pod.
The model learns a fixed function, so a falling loss shows that nothing was forgotten.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from elastic_worker import Pod, Run

STEPS = int(os.environ.get("STEPS", "400"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.1"))
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "0.003"))
STOP_FILE = os.environ.get("STOP_FILE", "")  # where rank 0 can see it; without it STEPS is the end, with it the least
CHECKPOINT_DIR = os.environ.get("CHECKPOINT_DIR")  # a folder or URL that all workers see, for the case that all pods are lost
MODEL_FILE = os.environ.get("MODEL_FILE")  # rank 0 writes the whole model to it at the end


def is_over(step: int) -> bool:
    """Return whether training ends after this step. All workers have to end at the same step, so rank 0 looks for all."""
    if step < STEPS or not STOP_FILE:
        return step >= STEPS
    seen = torch.tensor([int(os.path.exists(STOP_FILE))])
    dist.broadcast(seen, src=0)
    return bool(seen)


def sharded_model(pod: Pod) -> torch.nn.Module:
    """Return the model with each layer sharded over the workers of this pod."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers).double()  # so that the order of additions changes nothing that is worth a look
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=pod.mesh)
    return fully_shard(model, mesh=pod.mesh)


def main() -> None:
    torch.set_num_threads(1)
    pod = Pod()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3200, 16, generator=generator, dtype=torch.float64)
    targets = torch.tanh(inputs @ torch.randn(16, 1, generator=generator, dtype=torch.float64))
    data = torch.utils.data.TensorDataset(inputs, targets)
    model = sharded_model(pod)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)  # after fully_shard, which replaces the parameters
    run = Run(model, optimizer, data=data, batch=96, save=CHECKPOINT_DIR, shards=pod)
    world = None
    for step in run.steps(10**9):
        with step:
            for x, y in step.batches():
                loss = torch.nn.functional.mse_loss(run.model(x), y)
                step.backward(loss, samples=len(x))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            has_ended = is_over(step.number + 1)
            optimizer.step()
            optimizer.zero_grad()
            value = loss.item()
            step.report(loss=value)
        if step.is_first_rank and world != run.size:
            world = run.size
            print(f"world {run.size} rank 0 starts at step {step.number}", flush=True)
        if step.is_first_rank:
            print(f"step {step.number + 1} world {run.size} loss {value:.6f}", flush=True)
        if step.is_committed and has_ended:
            break
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}  # all workers of the pod must do this
    if run.rank == 0 and MODEL_FILE:
        torch.save(whole, MODEL_FILE)
    print(f"rank {run.rank} done at step {run.committed}", flush=True)


if __name__ == "__main__":
    main()
