"""FSDP2 with real processes: two replicas of two shards. One replica is lost in a backward, and another one takes its place."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal
import typing

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from elastic_worker.training.fsdp import Unit
from elastic_worker.training.sampler import Sampler, weight
from elastic_worker.training.saves import Saves
from elastic_worker.training.whole import ReplicaLost

SHARDS, BATCH, STEPS, LOST_AT = 2, 12, 6, 3
TIMEOUT = datetime.timedelta(seconds=60)

pytestmark = [pytest.mark.integration, pytest.mark.torch]


def network() -> torch.nn.Module:
    torch.manual_seed(4)
    layers = [torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)]
    return torch.nn.Sequential(*layers).double()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def loss_of(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    x = torch.sin(torch.tensor(ids, dtype=torch.float64)[:, None] * torch.arange(1, 7))
    return ((model(x).squeeze(1) - x.sum(1)) ** 2).mean()


def reference() -> list[torch.Tensor]:
    """Return the weights after the same training in one process."""
    model, sampler = network(), Sampler(100, BATCH)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, sampler.ids(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


class Worker:
    """One shard of one replica."""

    def __init__(self, folder: pathlib.Path, name: str, index: int) -> None:
        self.folder, self.name = folder, name
        self.unit = Unit(dist.FileStore(str(folder / f"unit-{name}"), SHARDS), index, SHARDS)
        self.model = network()
        for layer in self.model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=self.unit.mesh)
        fully_shard(self.model, mesh=self.unit.mesh)
        self.optimizer = optimizer_of(self.model)
        self.unit.hold(self.model, self.optimizer)
        self.unit.leave()
        self.sampler = Sampler(100, BATCH)
        self.state = self.unit.states
        self.rank = self.size = 0

    def enter(self, world: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        store = dist.FileStore(str(self.folder / f"world-{world}"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        self.unit.enter(rank, size)

    def leave(self) -> None:
        self.unit.leave()
        dist.destroy_process_group()

    def step(self, number: int) -> None:
        """Do one step with two micro-batches, or raise ReplicaLost without having written anything."""
        assert not self.unit.agree(False)
        self.optimizer.zero_grad()
        share = self.sampler.share(number, self.rank, self.size)
        for ids, is_last in ((share[:1], False), (share[1:], True)):
            self.unit.sync(is_last)
            (loss_of(self.model, ids) * weight(len(ids), BATCH, self.size)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.unit.check_step(is_written=False)
        self.optimizer.step()

    def full(self) -> list[torch.Tensor]:
        return [parameter.full_tensor().detach() if isinstance(parameter, DTensor) else parameter for parameter in self.model.parameters()]

    def die_in_backward(self, after: int) -> None:
        """End this process in its all-reduce hook, after so many that worked."""
        calls = iter(range(1000))

        def deadly(gradient: torch.Tensor) -> None:
            if next(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            self.unit._reduce(gradient)

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(deadly)


def survivor(folder: pathlib.Path, index: int) -> None:
    worker = Worker(folder, "a", index)
    worker.enter("1", index, 4)
    for number in range(LOST_AT):
        worker.step(number)
    before = [parameter.to_local().clone() for parameter in worker.model.parameters()]  # type: ignore[attr-defined]
    with pytest.raises(ReplicaLost, match=("RuntimeError", "Another shard")[index]):
        worker.step(LOST_AT)
    for old, parameter in zip(before, worker.model.parameters(), strict=True):
        assert torch.equal(old, parameter.to_local())  # type: ignore[attr-defined]
    worker.leave()
    worker.enter("2", index, 2)
    worker.step(LOST_AT)
    saves = Saves(folder / "saves", 60, shard=(index, SHARDS), agree=worker.unit.tag, is_any=worker.unit.agree)
    assert saves.now(LOST_AT + 1, worker.state, 60)
    torch.save({name: part.state_dict() for name, part in worker.state.items()}, folder / f"state-{index}.part")
    os.rename(folder / f"state-{index}.part", folder / f"state-{index}")
    worker.leave()
    worker.enter("3", SHARDS + index, 4)  # another place in the world
    finish(worker)


def lost(folder: pathlib.Path, index: int) -> None:
    worker = Worker(folder, "b", index)
    worker.enter("1", SHARDS + index, 4)
    for number in range(LOST_AT):
        worker.step(number)
    if index == 0:
        worker.die_in_backward(after=2)  # in the last of three hooks: all of the other shard's gradients are averaged already
    worker.step(LOST_AT)


def newcomer(folder: pathlib.Path, index: int) -> None:
    """Stand by with random weights and an empty optimizer, and take the state of the same shard."""
    worker = Worker(folder, "c", index)
    for parameter in worker.model.parameters():
        parameter.data.mul_(0)
    worker.enter("3", index, 4)
    state = torch.load(folder / f"state-{index}")
    for name, part in worker.state.items():
        part.load_state_dict(state[name])
    finish(worker)


def finish(worker: Worker) -> None:
    for number in range(LOST_AT + 1, STEPS):
        worker.step(number)
    torch.save(worker.full(), worker.folder / f"result-{worker.rank}")
    dist.barrier()
    worker.leave()


def restarted(folder: pathlib.Path, index: int) -> None:
    """Go on from the save in a new job of one replica."""
    worker = Worker(folder, "d", index)
    saves = Saves(folder / "saves", 60, shard=(index, SHARDS), agree=worker.unit.tag, is_any=worker.unit.agree)
    assert saves.restore(worker.state) == LOST_AT + 1
    worker.enter("4", index, 2)
    for number in range(LOST_AT + 1, STEPS):
        worker.step(number)
    torch.save(worker.full(), worker.folder / f"result-restarted-{index}")
    dist.barrier()
    worker.leave()


def uneven(folder: pathlib.Path, index: int) -> None:
    """Stand for a worker of a pod that has one or two of them."""
    unit = Unit(dist.HashStore(), 0, 1)
    unit.leave()
    unit.count = 1 + index
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "world"), 2), rank=index, world_size=2, timeout=TIMEOUT)
    with pytest.raises(ValueError, match=r"LOCAL_WORLD_SIZE is 1 in one pod and 2 in another. Start all with the same"):
        unit.compare()


def run(jobs: typing.Iterable[tuple[typing.Any, ...]]) -> dict[tuple[str, int], int | None]:
    """Run processes to their end, and return their exit codes by function and shard."""
    # Not forks of this process: those end with SIGSEGV if another test has used torch's threads in it.
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    started = {}
    for function, folder, index in jobs:
        process = context.Process(target=quietly, args=(function, folder, index))
        process.start()
        started[function.__name__, index] = process
    try:
        for process in started.values():
            process.join(90)
        return {key: process.exitcode for key, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.join(10)


def quietly(function: typing.Callable[[pathlib.Path, int], None], folder: pathlib.Path, index: int) -> None:
    torch.set_num_threads(1)
    try:
        function(folder, index)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_lost_replica_is_replaced_and_the_weights_are_those_of_undisturbed_training(tmp_path: pathlib.Path) -> None:
    codes = run((function, tmp_path, index) for function in (survivor, lost, newcomer) for index in range(SHARDS))
    assert {code for (name, _), code in codes.items() if name != "lost"} == {0}, codes
    assert run((restarted, tmp_path, index) for index in range(SHARDS)) == {("restarted", 0): 0, ("restarted", 1): 0}
    results = sorted(tmp_path.glob("result-*"))
    assert len(results) == 6
    for path in results:
        for ours, expected in zip(torch.load(path), reference(), strict=True):
            assert torch.allclose(ours, expected, rtol=0, atol=1e-12)


def test_pods_of_different_sizes_are_refused_on_all_workers(tmp_path: pathlib.Path) -> None:
    assert run((uneven, tmp_path, index) for index in range(2)) == {("uneven", 0): 0, ("uneven", 1): 0}
