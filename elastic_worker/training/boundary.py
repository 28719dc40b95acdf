"""Keeps the values that a broken step changes although it is not committed: buffers and the states of random number generators."""

import random
import sys
import typing

import torch


class Boundary:
    """A copy at the beginning of each step, which is put back before the step is tried again."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._buffers = []  # type: typing.List[torch.Tensor]
        self._copies = []  # type: typing.List[torch.Tensor]
        self._random: typing.Optional[typing.Tuple[typing.Any, ...]] = None

    @torch.no_grad()
    def note(self) -> None:
        """Copy the present values."""
        buffers = list(self._model.buffers())
        if len(buffers) != len(self._buffers) or any(new is not old for new, old in zip(buffers, self._buffers)):
            self._buffers, self._copies = buffers, [buffer.clone() for buffer in buffers]
        elif buffers:
            torch._foreach_copy_(self._copies, buffers)
        numpy = sys.modules.get("numpy")
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._random = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None, cuda

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore the values of the step's beginning, and drop its gradients."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameter in self._model.parameters():
            parameter.grad = None
        if self._random is None:
            return
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._copies)
        torch.set_rng_state(self._random[0])
        random.setstate(self._random[1])
        if self._random[2] is not None:
            sys.modules["numpy"].random.set_state(self._random[2])
        if self._random[3] is not None:
            torch.cuda.set_rng_state(self._random[3])
