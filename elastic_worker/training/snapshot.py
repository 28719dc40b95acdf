"""Copies a state to CPU memory, so that it can be written while training goes on.

The copy goes into the buffers of the copy before, if they are free: that takes a seventh of the CPU time of new memory. So a process that
saves needs CPU memory for the state once more.
"""

import copy
import io
import pickle
import typing

import torch

Buffers = typing.Dict[typing.Tuple[typing.Any, ...], torch.Tensor]
"""Tensors on the CPU by their path in the state."""
PLAIN = (int, float, complex, str, bytes, type(None))


class Unsavable(TypeError):
    """The state contains an object that could not be read again."""


def snapshot(state: "typing.Mapping[str, typing.Any]", buffers: Buffers, *, look: "typing.Callable[[], None]" = lambda: None) -> typing.Any:
    """Return the state of all objects as it is now. `look` is called before each tensor, and may raise to give up.

    state: objects with `state_dict`, or plain values, or mappings of them.
    """
    return _Copy(buffers, look).of(states_of(state), ())


def states_of(state: "typing.Mapping[str, typing.Any]") -> "typing.Dict[str, typing.Any]":
    """Ask each object for its state."""
    return {key: _state_of(value) for key, value in state.items()}


def load(state: "typing.Mapping[str, typing.Any]", saved: "typing.Mapping[str, typing.Any]", path: str = "") -> "typing.List[str]":
    """Load each object of a state, and return the names that are only in one of both. Plain values are not loaded."""
    strange = [f"{path}{key}" for key in saved if key not in state]
    for key, value in state.items():
        if hasattr(value, "load_state_dict") or isinstance(value, typing.Mapping):
            if key not in saved:
                strange.append(f"{path}{key}")
            elif hasattr(value, "load_state_dict"):
                value.load_state_dict(saved[key])
            else:
                strange += load(value, saved[key], f"{path}{key}.")
    return strange


def check(state: "typing.Mapping[str, typing.Any]") -> None:
    """Raise Unsavable if the state contains objects other than tensors and plain values, because it could not be read again."""
    for key, value in state.items():
        written = io.BytesIO()
        try:
            torch.save(_Skeleton().of(_state_of(value), ()), written)
            written.seek(0)
            torch.load(written, weights_only=True)
        except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as error:
            words = " ".join(str(error).split("WeightsUnpickler error:")[-1].split())[:300]
            raise Unsavable(
                f"The state_dict of {key} ({type(value).__name__}) cannot be saved: {words} "
                "Keep tensors, numbers, strings, lists and dicts in it, or allow the class with torch.serialization.add_safe_globals."
            ) from error


def _state_of(value: typing.Any) -> typing.Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return states_of(value) if isinstance(value, typing.Mapping) else value


class _Copy:
    """A deep copy, with tensors on the CPU. Tensors that share memory as a whole (tied weights) are copied once."""

    def __init__(self, buffers: Buffers, look: "typing.Callable[[], None]") -> None:
        self._buffers = buffers
        self._look = look
        self._copied = {}  # type: typing.Dict[typing.Tuple[typing.Any, ...], torch.Tensor]

    def of(self, value: typing.Any, path: "typing.Tuple[typing.Any, ...]") -> typing.Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value.detach(), path)
        if isinstance(value, dict):
            made = copy.copy(value)  # keeps the type, and the _metadata of a module's state
            for key, item in value.items():
                made[key] = self.of(item, (*path, key))
            return made
        if type(value) in (list, tuple):
            return type(value)(self.of(item, (*path, number)) for number, item in enumerate(value))
        return value if type(value) in PLAIN else copy.deepcopy(value)

    def tensor(self, value: torch.Tensor, path: "typing.Tuple[typing.Any, ...]") -> torch.Tensor:
        self._look()
        if value.layout is not torch.strided:
            return value.to("cpu", copy=True)
        own = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype, value.device)
        if value.numel() == 0 or own not in self._copied:
            buffer = self._buffers.get(path)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = self._buffers[path] = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            self._copied[own] = buffer.copy_(value)
        return self._copied[own]


class _Skeleton(_Copy):
    """The state without the tensors' content: quick to write."""

    def __init__(self) -> None:
        super().__init__({}, lambda: None)

    def tensor(self, value: torch.Tensor, path: "typing.Tuple[typing.Any, ...]") -> torch.Tensor:
        return torch.empty(0, dtype=value.dtype)
