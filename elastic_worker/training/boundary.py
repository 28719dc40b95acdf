"""Keeps the values that a broken step changes although it is not committed: buffers and the states of random number generators.

Each step begins with such a copy, so this module counts microseconds.
"""

import _random
import ctypes
import random
import sys
import typing

import torch

LOOK_FOR_MODULES_EVERY = 100
"""Steps between two walks over the model's modules. A walk over 200 modules takes as long as a small model's forward."""
MT19937_BYTES = 2500
"""Size of numpy's struct: 624 words of 32 bits, and the position."""


class Boundary:
    """A copy at the beginning of each step, which is put back before the step is tried again."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._buffers = []  # type: typing.List[torch.Tensor]
        self._copies = []  # type: typing.List[torch.Tensor]
        self._random: typing.Optional[typing.Tuple[typing.Any, ...]] = None
        self._python, self._numpy = PythonState(), NumpyState()
        self._owners = []  # type: typing.List[typing.Dict[str, typing.Optional[torch.Tensor]]]
        self._notes = 0

    def note(self) -> None:
        """Copy the present values."""
        if self._notes % LOOK_FOR_MODULES_EVERY == 0:
            self._owners = [module._buffers for module in self._model.modules()]
        self._notes += 1
        buffers = [buffer for owner in self._owners for buffer in owner.values() if buffer is not None]
        if len(buffers) != len(self._buffers) or any(new is not old for new, old in zip(buffers, self._buffers)):
            self._buffers, self._copies = buffers, [buffer.detach().clone() for buffer in buffers]
        elif buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, buffers)
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._random = torch.default_generator.get_state(), self._python.get(), self._numpy.get(), cuda

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


class PythonState:
    """The state of Python's global generator. Python needs 9 us to return it, so it is only asked for if it has changed."""

    def __init__(self) -> None:
        self._raw = b""
        self._state: typing.Any = None

    def get(self) -> typing.Any:
        """Return the state."""
        generator = getattr(random.getstate, "__self__", None)
        raw = b""
        # The generator may have given away the second number of a pair, which its memory does not show.
        if type(generator) is random.Random and sys.implementation.name == "cpython" and getattr(generator, "gauss_next", 0.0) is None:
            header = object.__basicsize__
            raw = ctypes.string_at(id(generator) + header, _random.Random.__basicsize__ - header)
        if not raw or raw != self._raw:
            self._raw, self._state = raw, random.getstate()
        return self._state


class NumpyState:
    """The state of numpy's global generator. numpy needs 0.1 ms to return it, so it is only asked for if it has changed."""

    def __init__(self) -> None:
        self._raw = b""
        self._state: typing.Optional[typing.Dict[str, typing.Any]] = None

    def get(self) -> typing.Optional[typing.Dict[str, typing.Any]]:
        """Return the state; None without numpy."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        raw = _raw(numpy)
        # The generator of normal numbers may have given away the second number of a pair, which the raw state does not show.
        if not raw or raw != self._raw or self._state is None or self._state["has_gauss"]:
            self._raw, self._state = raw, numpy.random.get_state(legacy=False)
        return self._state


def _raw(numpy: typing.Any) -> bytes:
    """Return the memory of the global generator; nothing if it is another one than MT19937, or if numpy is older than 1.24."""
    get = getattr(numpy.random, "get_bit_generator", None)
    generator = get() if get is not None else None  # type: typing.Any
    if type(generator).__name__ != "MT19937":
        return b""
    return ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES)
