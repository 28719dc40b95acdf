"""Shards a model inside a unit, a fixed group of workers such as those of one pod, and averages over replicas that come and go (FSDP2).

    pod = Pod()                                        # once per process, before the first world
    for layer in model.layers:
        fully_shard(layer, mesh=pod.mesh)
    fully_shard(model, mesh=pod.mesh)
    run = Run(model, optimizer, data=dataset, batch=256, shards=pod)

If a worker of a unit is lost, the whole unit is lost; the other units have the whole state. The shard group lives as long as the process,
and the sharded model is never built again. Only the group of the all-reduce hook changes.

A lost peer must not raise inside a backward: the other shards of the unit would wait for this one in the next collective of the shard
group, which nobody breaks off. So the hook notes the loss, the backward ends with useless gradients, and `check_step` raises on all shards
of the unit. A step is committed by all shards of a unit or by none.
"""

import datetime
import os
import time
import typing

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, Store
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from elastic_worker.training import environment, mistakes
from elastic_worker.training.registry import KeptGroup, c10d
from elastic_worker.training.shards import ShardedModel, ShardedOptimizer
from elastic_worker.training.uncaught import in_words
from elastic_worker.training.whole import ReplicaLost

FORM_S = 60.0
"""Time for all workers of a unit to arrive."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Names a file in the folder that torchrun empties before each start of its workers."""


class Unit:
    """The workers that hold one replica of the model together. They begin and end together."""

    def __init__(self, store: typing.Any, index: int, count: int, *, device: str = "cpu", form_s: float = FORM_S) -> None:
        """Form the shard group over a store that only this unit uses, for example a FileStore in the pod. No group may exist yet.

        index: the shard of this worker, usually LOCAL_RANK.
        """
        if dist.is_initialized():
            raise ValueError(
                "A process group exists already. Form the shard group before it, because it outlives every world, and let Run form the "
                "group of the world: remove init_process_group."
            )
        self.index, self.count = index, count
        """Number of this shard, and how many shards are a replica."""
        self.replicas = None  # type: typing.Optional[dist.ProcessGroup]
        """The workers with the same shard, in the present world. None if this is the only unit."""
        self.states = {}  # type: typing.Dict[str, typing.Any]
        """The objects that have the state of this shard."""
        self.model = None  # type: typing.Any
        """The sharded model."""
        self._modules = []  # type: typing.List[FSDPModule]
        self._check = self._settle = lambda: None  # type: typing.Callable[[], None]
        self.waited = lambda since: None  # type: typing.Callable[[float], None]
        """Hears since when this worker has waited for its peers."""
        self._lost = None  # type: typing.Optional[str]
        self._meets_peers = True
        backend, timeout = ("gloo" if device == "cpu" else "cpu:gloo,{}:nccl".format(device)), datetime.timedelta(seconds=form_s)
        dist.init_process_group(backend, store=store, rank=index, world_size=count, timeout=timeout)
        # Its name must be a hash: names that count upwards return in each world, and DTensor finds groups by their names.
        group = dist.new_group(list(range(count)), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        default = dist.group.WORLD
        assert default is not None
        for own in (default, group):
            c10d._set_pg_timeout(c10d.default_pg_timeout, own)  # a shard may wait for an evaluation on another one
        self._votes, self._shards = KeptGroup(default), KeptGroup(group)
        self.kept = default, group
        """Groups that outlive a world."""
        self.mesh = DeviceMesh.from_group(group, device)
        """The mesh for `fully_shard`. It is valid in all worlds."""

    def hold(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients of a sharded model over the replicas. Call it once, after the last `fully_shard`."""
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        own = self._own_parameters()
        whole = [name for name, parameter in model.named_parameters() if id(parameter) not in own]
        if not own or whole:
            found = f"{whole[0]} is not sharded over the mesh of shards=" if whole else "the model has no parameters"
            raise ValueError(f"shards is given, but {found}. Call fully_shard(model, mesh=shards.mesh) for the whole model before Run.")
        words = "sharded model. fully_shard replaces the parameters. Make the optimizer after the last fully_shard."
        mistakes.check_parameters(optimizer, own, words)
        for module in self._modules:
            module.set_all_reduce_hook(self._reduce)
        self.model = model
        self.states = {"model": ShardedModel(model), "optimizer": ShardedOptimizer(optimizer)}

        def check_state(*_: typing.Any) -> None:
            self.states["optimizer"].state_dict()
            first.remove()

        # An optimizer makes its state in its first step. Whether that can travel must not be found out when a worker is lost.
        first = optimizer.register_step_post_hook(check_state)

    def _groups(self) -> "typing.Iterator[typing.Any]":
        """Yield FSDP's parameter groups."""
        for module in self._modules:
            yield from module._get_fsdp_state()._fsdp_param_groups

    def _own_parameters(self) -> "typing.Set[int]":
        """Return the ids of the parameters that are sharded over this unit."""
        own = self._shards.group.group_name  # a mesh says too little: meshes over the same ranks are equal
        groups = [group for group in self._groups() if getattr(group.mesh_info, "shard_process_group", None) is not None]
        sharded = [group for group in groups if group.mesh_info.shard_process_group.group_name == own]
        return {id(parameter.sharded_param) for group in sharded for parameter in group.fsdp_params}

    def watch(self, check: "typing.Callable[[], None]", settle: "typing.Callable[[], None]") -> None:
        """Call `check` before collectives with other replicas, and `settle` after them. They raise RuntimeError if the world has ended."""
        self._check, self._settle = check, settle

    def is_first(self, rank: int) -> bool:
        """Return whether this worker belongs to the first replica, whose shards write the saves."""
        return rank < self.count

    # --- worlds

    def compare(self) -> None:
        """Raise ValueError if the workers of the world come from units of different sizes. All workers must call it."""
        counts = torch.tensor([self.count, -self.count])
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        most, least = int(counts[0]), -int(counts[1])
        if most != least:
            raise ValueError(f"LOCAL_WORLD_SIZE is {least} in one pod and {most} in another. Start all with the same --nproc-per-node.")

    def enter(self, rank: int, size: int) -> None:
        """Form the group of replicas in a new world whose default group exists. Ranks of a unit follow one another.

        It opens connections, so call it while the connections of the world are being noted. Raise RuntimeError if a peer is lost.
        """
        _check_place(self.index, self.count, rank, size)
        self._lost = None
        self._shards.put_in(rank - self.index)
        if size > self.count:
            replicas = dist.new_group(list(range(self.index, size, self.count)), use_local_synchronization=True)
            assert isinstance(replicas, dist.ProcessGroup)
            self.replicas = replicas
        self._meets_peers = False

    def wrap(self, *, is_level: bool) -> None:
        """Send the state of the first replica to all, unless it is level already."""
        if is_level or self.replicas is None:
            return
        for value in self.states["model"].state_dict().values():
            if isinstance(value, torch.Tensor):
                dist.broadcast(value, src=self.index, group=self.replicas)

    def rehearse(self) -> None:
        """Do nothing: the shard group exists already, and has been used."""

    def leave(self) -> None:
        """Drop the group of replicas. Afterwards the default group may be destroyed, and the groups of the unit live on."""
        self.replicas = None
        self._meets_peers = True  # until the next world is formed
        self._votes.take_out()
        self._shards.take_out()

    def rest(self) -> None:
        """Make the unit the default group again, as before the first world: the program may gather the model."""
        self.leave()
        self._votes.be_default()
        self._shards.put_in(0)

    # --- steps

    def begin_step(self) -> None:
        """Prepare the first backward of a step."""
        self.sync(True)

    def sync(self, is_last: bool) -> None:
        """Reduce gradients in the next backward only if it is the last one of the step."""
        for module in self._modules:
            module.set_requires_gradient_sync(is_last, recurse=False)

    def begin_backward(self) -> None:
        """Do nothing: only `check_step` may end a step, because it does so on all shards."""

    def end_backward(self) -> None:
        """Do nothing, for the same reason."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add values up over all workers of the world, in place."""
        self._check()
        dist.all_reduce(values)
        return values

    def put_back(self) -> bool:
        """Drop the gradients that FSDP has kept for the rest of a broken step. Return whether the step can be tried again."""
        is_whole = True
        for group in self._groups():
            is_whole = is_whole and group._training_state.name == "IDLE"
            for parameter in group.fsdp_params:
                parameter.unsharded_accumulated_grad = None
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None
        return is_whole

    def meets_peers(self) -> bool:
        """Return whether the main thread may be waiting for workers of other replicas now, and not for a shard of this one."""
        return self._meets_peers

    # --- agreement with the other shards of this replica

    def agree(self, flag: bool) -> bool:
        """Return whether the flag is set on any shard of the unit. All shards must call it."""
        found = torch.tensor([int(flag)])
        self._votes.group.allreduce([found]).wait()
        return bool(found.item())

    def tag(self, value: int) -> int:
        """Return the value of shard 0 on all shards, as `Saves(agree=unit.tag)` needs it."""
        found = torch.tensor([value if self.index == 0 else 0], dtype=torch.int64)
        self._votes.group.allreduce([found]).wait()
        return int(found.item())

    def check_step(self, *, is_written: bool) -> None:
        """Raise ReplicaLost on all shards of the unit if the step has failed on any of them.

        It runs before each optimizer step, and before the step is committed.
        """
        try:
            if not is_written:
                self._settle()
        except RuntimeError as error:
            self._lost = self._lost or in_words(error)
        lost, self._lost = self._lost, None
        if self.agree(lost is not None):
            raise ReplicaLost(lost or "Another shard of this unit lost a peer.")

    def give_up(self) -> None:
        """Make the next `check_step` of the other shards fail."""
        self._lost = None
        self.agree(True)

    def _reduce(self, gradient: torch.Tensor) -> None:
        """Average a shard's gradient over the replicas. It is the hook that FSDP calls after its reduce-scatter."""
        if self.replicas is None or self._lost is not None:
            return
        self._meets_peers = True
        try:
            self._check()  # a collective that meets closing connections may be forgotten by gloo
            began = time.perf_counter()
            dist.all_reduce(gradient, group=self.replicas)
            self.waited(began)
            gradient.div_(self.replicas.size())
        except RuntimeError as error:
            self._lost = in_words(error)
        finally:
            self._meets_peers = False


class Pod(Unit):
    """The workers that one torchrun has started: LOCAL_WORLD_SIZE shards of a replica. A process without torchrun is a pod of its own."""

    def __init__(self, *, device: str = "cpu", form_s: float = FORM_S) -> None:
        """Form the shard group. Call it before any process group exists, and shard the model over `mesh`."""
        count, index = environment.own("LOCAL_WORLD_SIZE", 1), environment.own("LOCAL_RANK", 0)
        if environment.is_distributed():
            _check_place(index, count, environment.own("RANK", 0), environment.own("WORLD_SIZE", 1))
        super().__init__(HashStore() if count == 1 else _store(count), 0 if count == 1 else index, count, device=device, form_s=form_s)


def _store(count: int) -> Store:
    """Return a store that only the workers of this start of torchrun share."""
    file = os.environ.get(ERROR_FILE, "")
    folder = os.path.dirname(os.path.dirname(file))
    if not folder or not os.path.isdir(folder):
        raise ValueError(
            f"LOCAL_WORLD_SIZE is {count}, but {ERROR_FILE} is {file!r}. The workers of a pod meet in the folder of torchrun that it "
            "names. Start them with torchrun, without --log-dir=/dev/null."
        )
    return FileStore(os.path.join(folder, "elastic-shards"), count)


def _check_place(index: int, count: int, rank: int, size: int) -> None:
    if size % count or rank % count != index:
        raise ValueError(
            f"RANK is {rank} and WORLD_SIZE is {size}, but LOCAL_RANK is {index} and LOCAL_WORLD_SIZE is {count}: each pod must have the "
            "same number of shards, with ranks one after the other. Start all with the same --nproc-per-node (nprocPerNode of a job)."
        )
