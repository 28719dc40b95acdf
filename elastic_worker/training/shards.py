"""Gives the shards of one worker as a state of plain tensors, which can be saved and sent to a worker with the same shard."""

import typing

import torch
from torch.distributed.tensor import DTensor


class ShardedModel:
    """The shards of this worker as a state, for saves and newcomers: plain tensors, the same at this index of each replica."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def state_dict(self) -> "typing.Dict[str, typing.Any]":
        """Return the model's state. Its tensors are those that train."""
        return {name: _local(value) for name, value in self._model.state_dict().items()}

    def load_state_dict(self, state: "typing.Mapping[str, typing.Any]") -> None:
        """Take the state of the same shard."""
        full = self._model.state_dict()
        self._model.load_state_dict({name: _global(value, full.get(name)) for name, value in state.items()})


class ShardedOptimizer:
    """The optimizer state of this worker's shards as plain tensors."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> "typing.Dict[str, typing.Any]":
        """Return the optimizer's state. Its tensors are those that train."""
        state = self._optimizer.state_dict()
        parameters = self._parameters(state)
        entries = {
            number: {name: self._shard(parameters[number], name, value) for name, value in entry.items()}
            for number, entry in state["state"].items()
        }
        return {**state, "state": entries}

    def load_state_dict(self, state: "typing.Mapping[str, typing.Any]") -> None:
        """Take the state of the same shard."""
        parameters = self._parameters(state)
        entries = {
            number: {name: _global(value, parameters[number]) for name, value in entry.items()} for number, entry in state["state"].items()
        }
        self._optimizer.load_state_dict({**state, "state": entries})

    def _parameters(self, state: "typing.Mapping[str, typing.Any]") -> "typing.Dict[int, torch.Tensor]":
        """Return the parameters by their numbers in a state."""
        own = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        if len(own) != len(numbers):
            raise ValueError(f"The optimizer has {len(own)} parameters, but the state has {len(numbers)}.")
        return {number: own[place] for place, number in enumerate(numbers)}

    def _shard(self, parameter: torch.Tensor, name: str, value: typing.Any) -> typing.Any:
        if isinstance(value, DTensor) and value.shape != parameter.shape:
            found = f"{type(self._optimizer).__name__} keeps sharded state {name} of shape {tuple(value.shape)}"
            raise TypeError(
                f"{found} for a parameter of shape {tuple(parameter.shape)}. Only state of the parameter's shape can travel to another "
                "worker. Use an optimizer such as AdamW, SGD or Muon."
            )
        return _local(value)


def _local(value: typing.Any) -> typing.Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _global(value: typing.Any, like: typing.Any) -> typing.Any:
    """Return a local tensor as a shard like another one, if it has that one's local shape."""
    if not isinstance(like, DTensor) or not isinstance(value, torch.Tensor) or value.shape != like.to_local().shape:
        return value
    local = value.to(like.to_local().device)
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
