"""Measure the CPU time that the library adds to a step, against the same step with plain DistributedDataParallel.

One process trains two equal models in turn, some steps each, in the same process group: one by `Run` under an agent that the lab of the
tests plays, and one by plain DDP. Both report nothing but the step. Rank 0 of a real job also reports, so this process does, to a peer that
answers at once.

    python -m benchmarks.step_cost
    python -m benchmarks.step_cost --pace     the library that measures its pace for stragglers, against the library that does not
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from training_lab import Plane  # noqa: E402

from elastic_worker import Run, settings  # noqa: E402
from elastic_worker.training.step import Step  # noqa: E402

GOAL_US = 60.0
BLOCK = 100
"""Steps in a row by one way. A slow moment of the machine meets both."""
SAMPLES = 8
PACE_S = 0.02
"""Seconds of a window. A block so begins a measurement and sends messages too, hundreds of times as often as in a job."""


def main() -> None:
    """Train in turn, and print the difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of each way")
    parser.add_argument("--width", type=int, default=64, help="width of the network")
    parser.add_argument("--pace", action="store_true", help="compare the library with and without measuring its pace")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        plane = Plane(f"{folder}/door", 1)
        with _peer(f"{folder}/reports"):
            os.environ.update({settings.WORLD: f"{folder}/door", settings.REPORTS: f"{folder}/reports"})
            print((_compare_pace if given.pace else _compare)(given.steps, given.width), flush=True)
        plane.close()


def _compare(steps: int, width: int) -> str:
    """Return the figures as a sentence."""
    model, optimizer = _model(width)
    run = Run(model, optimizer, batch=SAMPLES)
    loop = iter(run.steps(1 + steps // BLOCK * BLOCK))
    _ours(run, next(loop), optimizer)
    other, other_optimizer = _model(width)
    plain = DistributedDataParallel(other)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(steps // BLOCK):
        ours.append(_cpu_us(lambda: _ours(run, next(loop), optimizer)))
        theirs.append(_cpu_us(lambda: _plain(plain, other_optimizer)))
    assert next(loop, None) is None, "the loop has ended, and so its group"
    return _sentence("plain DDP", theirs, "the library", ours)


def _compare_pace(steps: int, width: int) -> str:
    """Return the figures of a library that measures its pace and of one that does not, with a loader."""
    model, optimizer = _model(width)
    run = Run(model, optimizer, batch=SAMPLES, data=torch.utils.data.TensorDataset(torch.ones(64 * SAMPLES, 16)))
    loop = iter(run.steps(1 + 2 * (steps // BLOCK * BLOCK)))
    _loaded(run, next(loop), optimizer)
    assert run._control is not None
    times: dict[float, list[float]] = {PACE_S: [], 0.0: []}
    for _ in range(steps // BLOCK):
        for pace_s, found in times.items():
            run._control.pace_s = pace_s
            found.append(_cpu_us(lambda: _loaded(run, next(loop), optimizer)))
    assert next(loop, None) is None, "the loop has ended, and so its group"
    return _sentence("without pace", times[0.0], "with pace", times[PACE_S])


def _sentence(other: str, theirs: list[float], own: str, ours: list[float]) -> str:
    """Return the difference of two ways in words."""
    costs = sorted(a - b for a, b in zip(ours, theirs, strict=True))
    tenth, mean = len(costs) // 10, statistics.mean(theirs)
    return (
        f"{len(ours) * BLOCK} steps of each way: {other} {mean:.0f} us of CPU per step, "
        f"{own} {statistics.mean(costs):+.1f} us ({statistics.mean(ours) / mean:.3f} times; median {statistics.median(costs):+.1f}, "
        f"middle 80 % {costs[tenth]:+.1f} to {costs[-1 - tenth]:+.1f}); goal: at most {GOAL_US:.0f} us; load {os.getloadavg()[0]:.1f}"
    )


def _cpu_us(step: Callable[[], None]) -> float:
    """Return the CPU time of the whole process per step, over a block of steps."""
    began = time.process_time()
    for _ in range(BLOCK):
        step()
    return 1e6 * (time.process_time() - began) / BLOCK


def _model(width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.001)


INPUTS = torch.ones(SAMPLES, 16)


def _ours(run: Run, step: Step, optimizer: torch.optim.Optimizer) -> None:
    with step:
        loss = (run.model(INPUTS) ** 2).mean()
        step.backward(loss, samples=SAMPLES)
        optimizer.step()
        optimizer.zero_grad()


def _loaded(run: Run, step: Step, optimizer: torch.optim.Optimizer) -> None:
    with step:
        for (inputs,) in step.batches():
            step.backward((run.model(inputs) ** 2).mean(), samples=len(inputs))
        optimizer.step()
        optimizer.zero_grad()


def _plain(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = (model(INPUTS) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@contextlib.contextmanager
def _peer(path: str) -> Iterator[None]:
    """Answer reports, as the agent does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    for _ in lines:
                        connection.sendall(json.dumps({}).encode() + b"\n")

        threading.Thread(target=serve, daemon=True).start()
        yield


if __name__ == "__main__":
    main()
