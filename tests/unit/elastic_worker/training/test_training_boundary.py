"""The copy from which a broken step is tried again: buffers, gradients, and all global random number generators."""

from __future__ import annotations

import random
import sys

import numpy
import pytest
import torch

from elastic_worker.training.boundary import LOOK_FOR_MODULES_EVERY, Boundary, PythonState


def drawn() -> tuple[float, ...]:
    """Draw from every global generator. numpy gives normal numbers in pairs and keeps the second one."""
    numbers = (torch.rand(()).item(), random.random(), float(numpy.random.normal()))
    return (*numbers, float(numpy.random.rand()) if random.random() < 0.5 else 0.0)


@pytest.fixture
def boundary() -> Boundary:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    return Boundary(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_step_that_is_tried_again_draws_the_same_numbers(boundary: Boundary) -> None:
    for _ in range(20):
        boundary.note()
        first = drawn()
        boundary.put_back()
        assert drawn() == first
        boundary.note()
        drawn()  # this step is committed


def test_the_second_number_of_a_pair_is_given_again_though_the_generator_stood_still(boundary: Boundary) -> None:
    """The raw state of numpy's generator does not change when the second number of a pair is taken."""
    numpy.random.seed(1)
    numpy.random.normal()
    boundary.note()
    second = numpy.random.normal()
    boundary.note()
    third = numpy.random.normal()
    boundary.put_back()
    assert numpy.random.normal() == third != second


def test_a_generator_that_another_kind_replaced_is_kept_too(boundary: Boundary) -> None:
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(7))
    try:
        boundary.note()
        first = numpy.random.rand()
        boundary.put_back()
        assert numpy.random.rand() == first
    finally:
        numpy.random.set_bit_generator(before)


def test_numpy_is_not_asked_for_its_state_if_nobody_uses_it(boundary: Boundary, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 0.1 ms, in each step of each worker."""
    numpy.random.seed(1)
    boundary.note()
    asked: list[int] = []
    monkeypatch.setattr(numpy.random, "get_state", lambda **_: asked.append(1))
    for _ in range(3):
        boundary.note()
    assert asked == []


def test_pythons_generator_is_copied_only_after_it_was_used(boundary: Boundary) -> None:
    """A copy takes 9 us, in each step of each worker."""
    python = PythonState()
    first = python.get()
    assert python.get() is first
    random.random()
    assert python.get() == random.getstate() != first


def test_the_second_number_of_a_pair_of_pythons_generator_is_given_again(boundary: Boundary) -> None:
    random.seed(1)
    random.gauss(0, 1)
    boundary.note()
    second = random.gauss(0, 1)
    boundary.note()
    third = random.gauss(0, 1)
    boundary.put_back()
    assert random.gauss(0, 1) == third != second


def test_it_works_without_numpy(boundary: Boundary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    boundary.note()
    first = torch.rand(())
    boundary.put_back()
    assert torch.rand(()) == first


def test_buffers_and_gradients_are_put_back_also_those_of_a_module_that_came_later() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    boundary = Boundary(model, optimizer)
    boundary.note()
    model.append(torch.nn.BatchNorm1d(2))
    model[0].register_buffer("late", torch.zeros(1))
    for _ in range(LOOK_FOR_MODULES_EVERY):
        boundary.note()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.randn(8, 2)).sum().backward()
    model[0].late += 1
    boundary.put_back()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())
