"""A training program for the lab, and the process from which its workers are forked with torch imported.

The program trains a small network next to a ledger: a parameter per sample, whose value counts how often the sample was used. Standard
input has a JSON object per line: the options of the next worker. The answer is the worker's pid.
"""

import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
import torch._dynamo  # the first DistributedDataParallel imports it, which takes as long as torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel  # noqa: F401

from elastic_worker.training import control as controls
from elastic_worker.training.run import Run

BATCH = 48
SAMPLES = 20 * BATCH
PROGRESS_EVERY = 8


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, id: int) -> tuple[torch.Tensor, int]:
        return torch.sin(id * torch.arange(1, 17, dtype=torch.float64)), id


class Model(torch.nn.Module):
    def __init__(self, width: int, seed: int, *, has_norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
        )
        self.ledger = torch.nn.Parameter(torch.zeros(SAMPLES))
        self.norm = torch.nn.BatchNorm1d(1, affine=False) if has_norm else None
        """Sees ones in each step, so that its statistics say how often it saw them."""
        self.double()

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.norm is not None:
            self.norm(x.new_ones(len(x), 1))
        return (self.net(x).squeeze(1) ** 2 + self.ledger[ids]).mean()


class Until:
    """The number of steps after which the training ends: given, or read from a file that the lab writes some time before."""

    def __init__(self, folder: Path, number: int | None) -> None:
        self._path = folder / "until"
        self.number = number

    def __gt__(self, step: int) -> bool:
        if self.number is None and self._path.exists():
            self.number = int(self._path.read_text())
        return self.number is None or step < self.number


def train(options: dict, folder: Path) -> None:
    """Train until so many steps are committed, and write the result."""
    torch.set_num_threads(1)
    # Newcomers and the first rank have other random weights, so that a state that does not travel is noticed.
    device = torch.device(options.get("device", "cpu"))
    os.environ["NCCL_HOSTID"] = f"worker-{os.getpid()}"  # NCCL refuses two ranks on one GPU, unless it takes them for two hosts
    model = Model(options.get("width", 32), options.get("seed", 7), has_norm=options.get("has_norm", False)).to(device)
    ledger = {"params": [model.ledger], "lr": float(BATCH), "momentum": 0.0}
    optimizer = torch.optim.SGD([{"params": model.net.parameters(), "lr": 0.01, "momentum": 0.9}, ledger])
    ddp = {"bucket_cap_mb": options.get("bucket_mb", 0.02)}
    controls.LEAVE_S = options.get("leave_s", controls.LEAVE_S)
    run = Run(model, optimizer, data=Samples(), batch=BATCH, seed=3, ddp=ddp, save=options.get("save"), backend=options.get("backend"))
    if options.get("is_silent"):
        _silence(run)
    until, sizes, first, draws = Until(folder, options.get("until")), [], None, []
    _seed_all()
    run.on_resize(lambda old, new: sizes.append((old, new)))
    for step in run.steps(until):
        first = step.number if first is None else first
        with step:
            drawn = _draw_all()
            _misbehave(options, folder, step.number - first, step.number, run.rank)
            for x, ids in step.batches():
                loss = run.model(x.to(device), ids.to(device))
                if options.get("hang_inside", [None])[0] == step.number:
                    (folder / f"forward-{os.getpid()}").touch()
                if options.get("hang_inside") == [step.number, run.rank]:
                    time.sleep(600)
                if until.number is None or options.get("until"):
                    time.sleep(options.get("compute_s", 0.0))
                step.backward(loss, samples=len(ids))
            if options.get("half_after") == step.number - first and not (folder / f"half-{os.getpid()}").exists():
                _half_step(optimizer, options, folder)
            optimizer.step()
            optimizer.zero_grad()
        draws += [drawn] if step.is_committed else []
        if options.get("save") and step.is_committed:
            (folder / f"after-{os.getpid()}").write_text(str(step.number))
        if step.is_first_rank and step.number % PROGRESS_EVERY == 0:
            note = folder / f"step-{os.getpid()}"  # the lab must not read the file while it is empty
            note.write_text(str(step.number))
            note.replace(folder / "step")
    steps = run.committed
    expected = torch.zeros(SAMPLES)
    for number in range(steps):
        expected += torch.bincount(torch.tensor(run._loader.sampler.ids(number)), minlength=SAMPLES)
    wrong = int(((-model.ledger.detach().cpu() - expected).abs() > 1e-6).sum())
    vector = torch.cat([parameter.detach().flatten() for parameter in model.net.parameters()])[::7].tolist()
    result = {"steps": steps, "wrong": wrong, "vector": vector, "sizes": sizes, "rank": run.rank, "size": run.size, "first": first}
    _seed_all()
    result["redrawn"] = sum(drawn != _draw_all() for drawn in draws)
    if model.norm is not None:
        result["seen"] = [int(model.norm.num_batches_tracked), float(model.norm.running_mean)]
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(
        json.dumps({**result, "environment": {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "ELASTIC_WORLD")}})
    )
    draft.replace(folder / f"result-{os.getpid()}")


def _silence(run: Run) -> None:
    """Let collectives of gradients behave as those of NCCL: they end with the world, without an error, and with wrong numbers."""

    def average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        try:
            dist.all_reduce(bucket.buffer())
            bucket.buffer().div_(run.size)
        except RuntimeError:
            assert run._control.is_ending(60.0)
            bucket.buffer().fill_(float("nan"))
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(bucket.buffer())
        return done

    run._replica.hooks.append((None, average))
    run._group.settle = lambda: True


def _seed_all() -> None:
    torch.manual_seed(11)
    random.seed(12)
    numpy.random.seed(13)


def _draw_all() -> list[float]:
    """Draw from the generators that augmentation and dropout use."""
    return [float(torch.rand(1)), random.random(), float(numpy.random.rand())]


def _misbehave(options: dict, folder: Path, after: int, step: int, rank: int) -> None:
    """Raise or hang after so many steps of this process, or hang in a step of the training."""
    if options.get("raise_after") == after:
        raise {"ValueError": ValueError, "RuntimeError": RuntimeError}[options["error"]]("the program's own error")
    if options.get("hang_after") == after or options.get("hang_at") == [step, rank]:
        (folder / f"hangs-{os.getpid()}").touch()
        time.sleep(600)


def _half_step(optimizer: torch.optim.Optimizer, options: dict, folder: Path) -> None:
    """Write half of a step, and wait for a peer as an optimizer with collectives does."""

    def write(*_: object) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.data.add_(1.0)
        handle.remove()
        (folder / f"half-{os.getpid()}").touch()
        dist.recv(torch.zeros(1), src=options["half_from"])

    handle = optimizer.register_step_pre_hook(write)


def main(train: Callable[[dict, Path], None]) -> None:
    """Train with the options that are given, or fork a worker for each line."""
    if len(sys.argv) > 1:
        given = json.loads(sys.argv[1])
        train(given, Path(given["folder"]))
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        options = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        code, folder = 1, Path(options["folder"])
        with contextlib.suppress(SystemExit):
            try:
                errors = os.open(folder / f"stderr-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
                os.dup2(errors, 2)
                os.dup2(errors, 1)  # standard output is for the lab
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                faulthandler.enable()
                faulthandler.register(signal.SIGUSR2)
                os.environ.update(options.get("environment", {}))
                train(options, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
        sys.stderr.flush()
        (folder / f"exit-{os.getpid()}").write_text(str(code))
        os._exit(code)


if __name__ == "__main__":
    main(train)
