"""A sharded model in one process, and what Run and Pod refuse with one clear error."""

import threading
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from elastic_worker import Pod, Run
from elastic_worker.training.data import Loader
from elastic_worker.training.sampler import Sampler
from elastic_worker.training.saves import Saves

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
DATA = torch.utils.data.TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    made = Pod()
    yield made
    made.leave()


def network() -> torch.nn.Sequential:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def sharded(pod: Pod) -> torch.nn.Sequential:
    model = network()
    fully_shard(model[0], mesh=pod.mesh)
    fully_shard(model, mesh=pod.mesh)
    return model


def train(model: torch.nn.Module, *, steps: int = 4, **options: typing.Any) -> Run:
    optimizer = options.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = Loader(DATA, Sampler(len(DATA), 10), micro_batch=4)
    run = Run(model, optimizer, data=loader, batch=10, **options)
    for step in run.steps(steps):
        with step:
            for x, y in step.batches():
                step.backward(torch.nn.functional.mse_loss(run.model(x), y), samples=len(x))
            optimizer.step()
            optimizer.zero_grad()
    return run


def test_one_process_trains_a_sharded_model_and_then_gathers_it(pod: Pod) -> None:
    model, plain = sharded(pod), network()
    train(model, shards=pod)
    train(plain)
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.full_tensor(), expected, rtol=0, atol=1e-12)  # type: ignore[attr-defined]


def test_a_save_of_shards_is_continued(pod: Pod, tmp_path: Path) -> None:
    model, again = sharded(pod), sharded(pod)
    train(model, shards=pod, save=str(tmp_path), steps=7)
    train(again, shards=pod, save=str(tmp_path), steps=7)
    for ours, expected in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.to_local(), expected.to_local())  # type: ignore[attr-defined]


def test_gradients_of_a_broken_step_do_not_count_in_the_next_attempt(pod: Pod) -> None:
    model = sharded(pod)
    pod.hold(model, torch.optim.SGD(model.parameters()))

    def gradients() -> list[torch.Tensor]:
        pod.begin_step()
        model(INPUTS).sum().backward()
        return [typing.cast(typing.Any, parameter.grad).to_local() for parameter in model.parameters()]

    expected = gradients()
    model.zero_grad()
    pod.sync(False)
    model(INPUTS).sum().backward()
    assert pod.put_back()
    assert all(map(torch.equal, gradients(), expected))


@pytest.mark.parametrize("shard", ["nothing", "a layer", "another mesh"])
def test_a_model_that_is_not_sharded_as_a_whole_is_refused(pod: Pod, shard: str) -> None:
    model = network()
    if shard == "a layer":
        fully_shard(model[0], mesh=pod.mesh)
    if shard == "another mesh":
        fully_shard(model)
    name = "2.weight" if shard == "a layer" else "0.weight"
    with pytest.raises(ValueError, match=rf"shards is given, but {name} is not sharded over the mesh of shards=. Call fully_shard"):
        train(model, shards=pod)


def test_a_sharded_model_without_its_pod_is_refused(pod: Pod) -> None:
    with pytest.raises(ValueError, match="The model is sharded, but shards is not given"):
        train(sharded(pod))


def test_an_optimizer_that_was_made_before_the_model_was_sharded_is_refused(pod: Pod) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    fully_shard(model, mesh=pod.mesh)
    with pytest.raises(ValueError, match=r"param_groups\[0\] has a parameter .* Make the optimizer after the last fully_shard"):
        train(model, optimizer=optimizer, shards=pod)


class RowMeans(torch.optim.SGD):
    """An optimizer whose state has another shape than its parameters."""

    def step(self, closure: typing.Any = None) -> typing.Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = parameter.detach().mean(-1)
        return super().step(closure)


def test_an_optimizer_whose_state_cannot_travel_is_refused_in_its_first_step(pod: Pod) -> None:
    model = sharded(pod)
    expected = r"RowMeans keeps sharded state rows of shape \(4,\) for a parameter of shape \(4, 3\)"
    with pytest.raises(TypeError, match=expected):
        train(model, optimizer=RowMeans(model.parameters()), shards=pod)


def test_arguments_of_ddp_are_refused_for_a_sharded_model(pod: Pod) -> None:
    with pytest.raises(ValueError, match="ddp is given, but a sharded model has no DistributedDataParallel"):
        train(sharded(pod), shards=pod, ddp={"bucket_cap_mb": 1})


def test_a_pod_is_refused_after_a_process_group(pod: Pod) -> None:
    with pytest.raises(ValueError, match="A process group exists already"):
        Pod()


@pytest.mark.parametrize(("rank", "size"), [(0, 3), (1, 4)])
def test_pods_of_different_sizes_are_refused(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ValueError, match=f"RANK is {rank} and WORLD_SIZE is {size}, .* Start all with the same --nproc-per-node"):
        Pod()


@pytest.mark.parametrize("file", ["", "/does/not/exist/0/error.json"])
def test_workers_that_have_no_folder_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_ERROR_FILE": file,
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"TORCHELASTIC_ERROR_FILE is .* without --log-dir=/dev/null"):
        Pod()
    assert not dist.is_initialized()


class Agreement:
    """Two shards in two threads that agree."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=30)
        self._values = [0, 0]

    def exchange(self, shard: int, value: int) -> list[int]:
        self._values[shard] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def saves(self, folder: Path, shard: int) -> Saves:
        return Saves(
            folder,
            60,
            shard=(shard, 2),
            agree=lambda value: self.exchange(shard, value)[0],
            is_any=lambda flag: any(self.exchange(shard, int(flag))),
        )


def test_a_save_that_one_shard_cannot_read_is_skipped_by_all(tmp_path: Path) -> None:
    agreement, found = Agreement(), {}

    def run(shard: int) -> None:
        saves = agreement.saves(tmp_path, shard)
        for step in (3, 5):
            assert saves.now(step, {"model": torch.nn.Linear(1, 1), "step": step}, 60)
        saves.close(60)
        if shard == 1:
            (file,) = tmp_path.glob("step-000000000005-*-1-of-2.pt")
            file.write_bytes(b"damaged")
        agreement.exchange(shard, 0)
        found[shard] = agreement.saves(tmp_path, shard).restore({"model": torch.nn.Linear(1, 1)})

    threads = [threading.Thread(target=run, args=(shard,), daemon=True) for shard in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {0: 3, 1: 3}
