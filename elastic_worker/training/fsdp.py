"""Shards a model inside a unit, a fixed group of workers such as those of one pod, and averages over replicas that come and go (FSDP2).

    unit = Unit(store, index, count)                   # once per process, before the first world
    for layer in model.layers:
        fully_shard(layer, mesh=unit.mesh)
    fully_shard(model, mesh=unit.mesh)
    unit.attach(model)                                 # ends the group that `fully_shard` needs
    unit.enter(rank, size)                             # after the group of each world was formed
    ...backward...
    unit.check_step()                                  # before optimizer.step()
    unit.leave()                                       # before the world's group is destroyed

If a worker of a unit is lost, the whole unit is lost; the other units have the whole state. The shard group lives as long as the process,
and the sharded model is never built again. Only the group of the all-reduce hook changes.

A lost peer must not raise inside a backward: the other shards of the unit would wait for this one in the next collective of the shard
group, which nobody breaks off. So the hook notes the loss, the backward ends with useless gradients, and `check_step` raises on all shards
of the unit. A step is committed by all shards of a unit or by none.
"""

import datetime
import typing

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

c10d = typing.cast(typing.Any, distributed_c10d)
Entries = typing.Dict[str, typing.Any]
FORM_S = 60.0
"""Time for all workers of a unit to arrive."""


class ReplicaLost(RuntimeError):
    """Gradients of this step were not averaged over all replicas. Nothing was written; try the step again in the next world."""


class Unit:
    """The workers that hold one replica of the model together. They begin and end together."""

    def __init__(self, store: typing.Any, index: int, count: int, *, device: str = "cpu", form_s: float = FORM_S) -> None:
        """Form the shard group over a store that only this unit uses, for example a FileStore in the pod. No group may exist yet.

        index: the shard of this worker, usually LOCAL_RANK.
        """
        if dist.is_initialized():
            raise ValueError("A process group exists already. Form the unit first, so that the shard group outlives every world.")
        self.index, self.count = index, count
        self.replicas = None  # type: typing.Optional[dist.ProcessGroup]
        """The workers with the same shard, in the present world. None if this is the only unit."""
        self._lost = None  # type: typing.Optional[str]
        backend, timeout = ("gloo" if device == "cpu" else "cpu:gloo,{}:nccl".format(device)), datetime.timedelta(seconds=form_s)
        dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=timeout)
        # Its name must be a hash: names that count upwards return in each world, and DTensor finds groups by their names.
        group = dist.new_group(list(range(count)), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._entries = {}  # type: Entries
        self.mesh = DeviceMesh.from_group(group, device)
        """The mesh for `fully_shard`. It is valid in all worlds."""

    def attach(self, model: torch.nn.Module) -> None:
        """Average the gradients of a sharded model over the replicas. Call it once, after the last `fully_shard`.

        The default group, which `fully_shard` needs, is the unit until now. It is destroyed here.
        """
        found = [module for module in model.modules() if hasattr(module, "set_all_reduce_hook")]
        if not found:
            raise ValueError("The model is not sharded. Call fully_shard(layer, mesh=unit.mesh) first.")
        for module in found:
            typing.cast(typing.Any, module).set_all_reduce_hook(self._reduce)
        self.leave()
        dist.destroy_process_group()

    def enter(self, rank: int, size: int, *, within_s: float = FORM_S) -> None:
        """Form the group of replicas in a new world whose default group exists. Ranks of a unit follow one another.

        It opens connections, so call it while the connections of the world are being noted. Raise RuntimeError if a peer is lost.
        """
        if size % self.count or rank % self.count != self.index:
            raise ValueError(f"Worker {rank} of {size} cannot be shard {self.index} of {self.count}: a unit must come and go as a whole.")
        self._lost = None
        first = rank - self.index
        _put_in(self._group, self._entries, {first + number: number for number in range(self.count)})
        if size > self.count:
            ranks = list(range(self.index, size, self.count))
            timeout = datetime.timedelta(seconds=within_s)
            replicas = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
            assert isinstance(replicas, dist.ProcessGroup)
            self.replicas = replicas

    def leave(self) -> None:
        """Drop the group of replicas. Afterwards the default group may be destroyed, and the shard group lives on."""
        self.replicas = None
        if self._group in c10d._world.pg_map:
            self._entries = _take_out(self._group)

    def syncs(self, model: typing.Any, is_last: bool) -> None:
        """Reduce gradients in the next backward only if it is the last one of the step."""
        model.set_requires_gradient_sync(is_last)

    def agree(self, flag: bool) -> bool:
        """Return whether the flag is set on any shard of the unit. All shards must call it.

        Call it at the beginning of each step with the news whether the world ends. Otherwise one shard could stop at the boundary while
        another one waits for it inside the next step.
        """
        found = torch.tensor([int(flag)])
        self._group.allreduce([found]).wait()
        return bool(found.item())

    def tag(self, value: int) -> int:
        """Return the value of shard 0 on all shards, as `Saves(agree=unit.tag)` needs it."""
        found = torch.tensor([value if self.index == 0 else 0], dtype=torch.int64)
        self._group.allreduce([found]).wait()
        return int(found.item())

    def check_step(self) -> None:
        """Raise ReplicaLost on all shards of the unit if a gradient of this step is wrong on any of them.

        Call it before each optimizer step, for example in a hook that is registered before all others.
        """
        lost, self._lost = self._lost, None
        if self.agree(lost is not None):
            raise ReplicaLost(lost or "Another shard of this unit lost a peer.")

    def _reduce(self, gradient: torch.Tensor) -> None:
        """Average a shard's gradient over the replicas. It is the hook that FSDP calls after its reduce-scatter."""
        if self.replicas is None or self._lost is not None:
            return
        try:
            dist.all_reduce(gradient, group=self.replicas)
            gradient.div_(self.replicas.size())
        except RuntimeError as error:
            self._lost = f"{type(error).__name__}: {error}"[:300]


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
            raise TypeError(f"{found} for a parameter of shape {tuple(parameter.shape)}. Only state of the parameter's shape can travel.")
        return _local(value)


def _local(value: typing.Any) -> typing.Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _global(value: typing.Any, like: typing.Any) -> typing.Any:
    """Return a local tensor as a shard like another one, if it has that one's local shape."""
    if not isinstance(like, DTensor) or not isinstance(value, torch.Tensor) or value.shape != like.to_local().shape:
        return value
    local = value.to(like.to_local().device)
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


# --- torch's registry of groups, which has no public way to keep a group over destroy_process_group ---


def _take_out(group: "dist.ProcessGroup") -> Entries:
    """Remove a group from torch's registry: destroy_process_group would shut it down, which ends a NCCL group."""
    world = c10d._world
    entries = {name: getattr(world, name).pop(group) for name in ("pg_map", "pg_names", "pg_backend_config", "pg_to_tag")}
    world.pg_group_ranks.pop(group)
    for groups in world.tags_to_pg.values():
        if group in groups:
            groups.remove(group)
    c10d._unregister_process_group(entries["pg_names"])
    return entries


def _put_in(group: "dist.ProcessGroup", entries: Entries, ranks: "typing.Dict[int, int]") -> None:
    """Add a group to torch's registry again, with the ranks of the present world. DTensor and clip_grad_norm_ look there."""
    world = c10d._world
    for name, value in entries.items():
        getattr(world, name)[group] = value
    world.pg_group_ranks[group] = ranks
    world.tags_to_pg.setdefault(entries["pg_to_tag"], []).append(group)
    c10d._register_process_group(entries["pg_names"], group)
