"""A program's mistake is one clear error, and never another training."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elastic_worker import Run
from elastic_worker.training.group import Group
from elastic_worker.training.mistakes import OWN_GROUP
from elastic_worker.training.whole import Whole


class Points(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run_of(**given: Any) -> tuple[Run, torch.optim.Optimizer]:
    model, optimizer = parts()
    return Run(model, optimizer, **{"batch": 4, "data": Points(), **given}), optimizer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": "96"}, "batch is '96', but must be the number of samples that all workers use in one step, at least 1"),
        ({"batch": 96.0}, "batch is 96.0, but must be"),
        ({"batch": 0}, "batch is 0, but must be"),
        ({"batch": True}, "batch is True, but must be"),
        ({"extra": [1]}, "extra is a list, but must name each object: extra={'scheduler': scheduler}"),
    ],
)
def test_an_argument_of_another_kind_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        run_of(**given)


def test_a_folder_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    """The first save, after five minutes, found it out."""
    (tmp_path / "file").write_text("")
    run, _ = run_of(save=str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"save is '.*/file', but nothing can be written there: .*. Name a folder that all workers"):
        next(run.steps(1))
    run, _ = run_of(save=str(tmp_path / "new"))
    assert next(run.steps(1)).number == 0
    assert list((tmp_path / "new").iterdir()) == []


def test_model_and_optimizer_in_the_wrong_order_are_named() -> None:
    model, optimizer = parts()
    with pytest.raises(TypeError, match=r"model is a SGD, but must be a torch.nn.Module. Call Run\(model, optimizer, ...\)"):
        Run(optimizer, model, batch=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="optimizer is a Linear, but must be an optimizer"):
        Run(model, model, batch=1)  # type: ignore[arg-type]


def test_an_optimizer_of_another_model_is_refused() -> None:
    """Nothing trained, and nobody said so."""
    model, _ = parts()
    _, other = parts()
    with pytest.raises(ValueError, match=r"param_groups\[0\] has a parameter that is not in the model. Make the optimizer from model"):
        Run(model, other, batch=1)


def test_a_step_of_the_optimizer_outside_of_the_block_is_refused() -> None:
    """It was found at the first change, when no worker had a complete state and 113 steps were lost."""
    run, optimizer = run_of()

    def train() -> None:
        for step in run.steps(1):
            with step:
                for x in step.batches():
                    step.backward(run.model(x).mean(), samples=len(x))
            optimizer.step()

    with pytest.raises(RuntimeError, match=r"optimizer.step\(\) was called outside of `with step:`"):
        train()


def test_a_batch_that_is_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch is 9, but data has 8 samples, so a step would use some of them twice. Pass a batch of at"):
        run_of(batch=9)


@pytest.fixture
def own_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Form a process group as a program does that runs under torchrun."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("own_group")
def test_a_call_that_meets_the_other_workers_is_refused_outside_of_the_block() -> None:
    """One rank evaluated with run.model, and ended with an error of gloo, or the job stood still."""
    run, optimizer = run_of()
    for step in run.steps(1):
        with step:
            for x in step.batches():
                step.backward(run.model(x).mean(), samples=len(x))
            step.sum(torch.ones(1))
            optimizer.step()
        with pytest.raises(RuntimeError, match=r"run.model or step.sum was called outside of `with step:`"):
            run.model(torch.ones(1, 2))
        with pytest.raises(RuntimeError, match=r"run.model or step.sum was called outside of `with step:`"):
            step.sum(torch.ones(1))
    assert run.committed == 1


@pytest.mark.usefixtures("own_group")
def test_a_program_that_forms_its_own_group_is_told_to_leave_that_to_run() -> None:
    """The first world could never be formed, and was tried again and again."""
    model, optimizer = parts()
    assert Group(model, Whole(model, optimizer, {})).obstacle() == OWN_GROUP


def test_before_and_after_the_loop_the_optimizer_may_step() -> None:
    run, optimizer = run_of()
    optimizer.step()
    for step in run.steps(1):
        with step:
            for x in step.batches():
                step.backward(run.model(x).mean(), samples=len(x))
            optimizer.step()
    optimizer.step()


def test_gradients_that_are_not_weighted_are_refused() -> None:
    run, optimizer = run_of()

    def train() -> None:
        for step in run.steps(1):
            with step:
                for x in step.batches():
                    run.model(x).mean().backward()
                optimizer.step()

    with pytest.raises(TypeError, match=r"Call step.backward\(loss, samples=len\(x\)\) in place of loss.backward\(\)"):
        train()


def test_batches_of_the_programs_own_may_have_gradients_of_its_own() -> None:
    run, optimizer = run_of(data=None)
    for step in run.steps(1):
        with step:
            run.model(torch.ones(4, 2)).mean().backward()
            optimizer.step()
    assert run.committed == 1


def test_a_scheduler_that_would_not_travel_is_refused() -> None:
    """After a worker had joined, the learning rates differed, and then the weights."""
    run, optimizer = run_of()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    with pytest.raises(ValueError, match=r"scheduler that is not in extra.*Pass Run\(..., extra={'scheduler': scheduler}\)"):
        next(run.steps(1))
    model, optimizer = parts()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    run = Run(model, optimizer, batch=4, data=Points(), extra={"scheduler": scheduler})
    assert next(run.steps(1)).number == 0


def test_a_training_that_is_done_already_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A finished job that ran again succeeded within a second, and nothing told why."""
    run, _ = run_of()
    assert list(run.steps(5, restored=5)) == []
    assert "All 5 steps were done before this start, so nothing is trained" in caplog.text
    caplog.clear()
    run, _ = run_of()
    assert next(run.steps(6, restored=5)).number == 5
    assert caplog.text == ""
