"""A worker measures which part of its steps it needs itself, and which part it waits for others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from elastic_worker.training import pace as module
from elastic_worker.training.pace import Pace

EVERY_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "now", made)
    return made


class Control:
    """The connection to an agent, which keeps the messages."""

    def __init__(self, pace_s: float = EVERY_S) -> None:
        self.pace_s = pace_s
        self.entered = 4
        self.sent: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: object) -> None:
        self.sent.append({"t": kind, **fields})


class Trainer:
    """A loop that does what Run does, with a clock that the test turns."""

    def __init__(self, clock: Clock, model: torch.nn.Module | None = None, *, marks_gradients: bool = True) -> None:
        self.clock = clock
        self.control = Control()
        self.model = model or torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        self.pace = Pace(self.model, marks_gradients=marks_gradients)

    def step(self, *, compute: float = 0.2, data: float = 0.0, wait: float = 0.0, outside: float = 0.0, micros: int = 1) -> None:
        self.pace.begin(self.control)
        for _ in self.pace.loading(self._micros(micros, data)):
            self.clock.now += compute / micros
            self.model(torch.ones(2, 4)).sum().backward()
            self.clock.now += wait / micros
            self.pace.averaged()
        if self.pace.is_on:
            self.pace.end(self.control)
        self.clock.now += outside

    def _micros(self, count: int, data: float) -> Iterator[int]:
        for number in range(count):
            self.clock.now += data / count
            yield number

    def window(self, **parts: Any) -> dict[str, Any]:
        """Do steps until a window is sent; return it."""
        self.control.sent.clear()
        for _ in range(1000):
            self.step(**parts)
            if self.control.sent:
                return self.control.sent[0]
        raise AssertionError("no window was sent")


def test_a_step_is_divided_into_what_the_worker_needs_and_what_it_waits_for(clock: Clock) -> None:
    trainer = Trainer(clock)
    trainer.window()
    told = trainer.window(compute=0.3, data=0.1, wait=0.4, outside=0.2)
    assert told == {
        "t": "pace",
        "round": 4,
        "steps": told["steps"],
        "compute_s": pytest.approx(0.3),
        "data_s": pytest.approx(0.1),
        "outside_s": pytest.approx(0.2, rel=0.2),
        "wait_s": pytest.approx(0.4),
        "send_s": 0.0,
    }


def test_the_last_micro_batch_waits_and_all_of_them_compute(clock: Clock) -> None:
    told = Trainer(clock).window(compute=0.4, wait=0.2, data=0.1, micros=4)
    assert (told["compute_s"], told["wait_s"], told["data_s"]) == (pytest.approx(0.4), pytest.approx(0.2), pytest.approx(0.1))


def test_a_window_ends_with_the_first_step_after_its_time(clock: Clock) -> None:
    trainer = Trainer(clock)
    assert trainer.window(compute=40.0)["steps"] == 1, "a step may take longer than a window"
    assert trainer.window(compute=0.125)["steps"] == 80


def test_nothing_is_measured_before_the_agent_asks_or_after_it_has_stopped_asking(clock: Clock) -> None:
    trainer = Trainer(clock)
    parameters = list(trainer.model.parameters())
    trainer.control.pace_s = 0.0
    for _ in range(100):
        trainer.step(compute=1.0)
    assert (trainer.control.sent, hooks(parameters)) == ([], 0)
    trainer.control.pace_s = EVERY_S
    trainer.window()
    assert hooks(parameters) == 1, "one hook for the whole model"
    trainer.control.pace_s = 0.0
    trainer.control.sent.clear()
    for _ in range(100):
        trainer.step(compute=1.0)
    assert (trainer.control.sent, hooks(parameters)) == ([], 0)


def hooks(parameters: list[torch.nn.Parameter]) -> int:
    return sum(len(one._post_accumulate_grad_hooks or ()) for one in parameters)  # type: ignore[attr-defined]


def test_a_new_world_begins_a_new_window(clock: Clock) -> None:
    trainer = Trainer(clock)
    trainer.window()
    trainer.step(compute=5.0)
    clock.now += 1000.0  # a change of the world
    trainer.control.entered = 5
    told = trainer.window(compute=0.5)
    assert (told["round"], told["compute_s"], told["outside_s"]) == (5, pytest.approx(0.5), 0.0)


def test_a_step_that_broke_off_does_not_count(clock: Clock) -> None:
    trainer = Trainer(clock)
    trainer.pace.begin(trainer.control)
    clock.now += 500.0
    trainer.control.entered = 5
    assert trainer.window(compute=0.5)["compute_s"] == pytest.approx(0.5)


class Half(torch.nn.Module):
    """A model whose last parameter gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def test_a_parameter_without_gradients_is_not_the_mark_for_long(clock: Clock) -> None:
    """A window without a mark would count all the waiting as computing, and is not sent."""
    told = Trainer(clock, Half()).window(compute=0.2, wait=0.3)
    assert (told["compute_s"], told["wait_s"]) == (pytest.approx(0.2), pytest.approx(0.3))


def test_frozen_parameters_are_no_marks(clock: Clock) -> None:
    model = Half()
    model.unused.requires_grad_(False)
    assert Trainer(clock, model).window(wait=0.3)["wait_s"] == pytest.approx(0.3)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2, device="meta"), torch.nn.ReLU()])
def test_a_model_on_another_device_or_without_parameters_is_not_measured(clock: Clock, model: torch.nn.Module) -> None:
    """A program runs ahead of a GPU, so its clock says nothing about it."""
    one, control = Pace(model, marks_gradients=True), Control()
    one.begin(control)
    assert not one.is_on


def test_waits_outside_of_the_backward_are_waits_too(clock: Clock) -> None:
    trainer = Trainer(clock, marks_gradients=False)
    trainer.pace.begin(trainer.control)
    clock.now += 11.0
    trainer.pace.waited(clock.now - 4.0)
    trainer.pace.end(trainer.control)
    assert [(one["compute_s"], one["wait_s"]) for one in trainer.control.sent] == [(7.0, 4.0)]


def test_the_program_of_the_loader_sees_the_same_batches_and_errors(clock: Clock) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("a row is broken")

    trainer = Trainer(clock)
    trainer.pace.begin(trainer.control)
    batches = trainer.pace.loading(broken())
    assert next(batches) == 1
    with pytest.raises(RuntimeError, match="a row is broken"):
        next(batches)
