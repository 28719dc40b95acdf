"""The process group of a world: formed again for each world, with gloo.

Another way to form a group, such as `_reconfigure` of torch 2.14 or NCCL, is another class with the methods of `Group`.
"""

import gc
import typing

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control
from elastic_worker.training.exchange import Exchange
from elastic_worker.training.whole import Whole

if typing.TYPE_CHECKING:
    from elastic_worker.training.fsdp import Unit

FORMING_S = 3.0
FORMING_PER_RANK_S = 0.05
"""Seconds that a group may take to form, for each rank in addition. Then Control breaks it off: gloo itself waits much longer."""

Replica = typing.Union[Whole, "Unit"]


def forming_s(size: int) -> float:
    """Return the seconds that a group of this size may take to form."""
    return FORMING_S + FORMING_PER_RANK_S * size


class Group:
    """The default process group, so that `dist.all_reduce(x)` of the program means the present world."""

    def __init__(self, model: torch.nn.Module, replica: Replica) -> None:
        self.replica = replica
        self._model = model
        self._is_own = False
        self._store = None  # type: typing.Optional[Exchange]
        """torch refers to the part of it in C++ only, and a store whose part in Python is gone serves no further group."""

    def rehearse(self) -> None:
        """Form a group of this process alone, wrap the model once, and leave the group.

        The first time takes torch's imports and many first calls. During a change, all others would wait for them.
        """
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
            self.replica.wrap(is_level=True)
            self.leave()

    def form(self, control: Control, connections: Connections, *, round: int, rank: int, size: int) -> None:
        """Form the group of a round. Raises RuntimeError if a peer is lost meanwhile or the round has ended."""
        self._is_own = True
        connections.begin(size)
        self._store = store = Exchange(control, connections, round=round, timeout_s=forming_s(size))
        # gloo connects all pairs here. TORCH_GLOO_LAZY_INIT=1 would form faster, but a peer that dies meanwhile would then be met in the
        # first collective, which waits for its connection on no socket and five times as long as torch's timeout.
        # The number of groups is a part of the keys in the store. After a failed attempt the ranks would never meet again.
        dist.distributed_c10d._world.group_count = 0
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self.replica.enter(rank, size)
        connections.formed()
        store.formed()

    def form_from_environment(self) -> None:
        """Form the group as a program under torchrun does, or take the one that the program has formed."""
        self.replica.leave()
        if not dist.is_initialized():
            self._is_own = True
            is_on_gpu = next(self._model.parameters()).device.type == "cuda"
            dist.init_process_group("nccl" if is_on_gpu else "gloo")
        self.replica.compare()
        self.replica.enter(dist.get_rank(), dist.get_world_size())
        self.replica.wrap(is_level=False)

    def end(self) -> None:
        """Leave the last world, unless the program formed its group: torch may hang if a group is left at the end of the process."""
        self.replica.leave()
        if self._is_own:
            self.leave()
        self.replica.rest()

    def leave(self) -> None:
        """Drop the group and everything that refers to it."""
        self.replica.leave()
        self._store = None
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect(0)
