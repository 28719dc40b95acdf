"""The process group of a world, which is formed again for each world: with gloo, and for a model on a GPU with NCCL as well."""

import gc
import sys
import typing

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from elastic_worker.training import mistakes
from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control
from elastic_worker.training.exchange import Exchange
from elastic_worker.training.nccl import CONNECT_S, Nccl
from elastic_worker.training.whole import Whole, obstacle

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

    def __init__(self, model: torch.nn.Module, replica: Replica, backend: typing.Optional[str] = None) -> None:
        """Prepare the groups of a model. `backend` is nccl or gloo; without it, the one that fits the model's device."""
        self.replica = replica
        self._model = model
        self._chosen = backend
        if backend not in (None, "nccl", "gloo"):
            raise ValueError('backend is {!r}, but must be "nccl" or "gloo". Leave it out to get the one for the device.'.format(backend))
        if backend == "nccl" and self._device.type != "cuda":
            raise ValueError('backend is "nccl", but the model is on {}. Move it to a GPU before Run.'.format(self._device))
        self._nccl = None  # type: typing.Optional[Nccl]
        self._is_own = False
        self._excepthook = sys.excepthook
        """The program's own. Each new group wraps the hook that it finds, to print the rank, and never gives it back."""
        self._store = None  # type: typing.Optional[Exchange]
        """torch refers to the part of it in C++ only, and a store whose part in Python is gone serves no further group."""

    def obstacle(self) -> str:
        """Return why worlds of this model cannot be formed in process; empty if they can."""
        if dist.is_initialized() and not self.replica.kept:
            return mistakes.OWN_GROUP
        # Four workers with shards that shared a GPU never did their first step, and nobody has found out why.
        return "shards on GPUs do not work with it yet" if self.replica.kept and self._device.type != "cpu" else obstacle()

    def rehearse(self) -> None:
        """Form a group of this process alone, do a first step of some kind, and leave the group.

        The first time takes torch's imports and many first calls. During a change, all others would wait for them.
        """
        self._nccl = self._nccl_of_model()
        if not dist.is_initialized():  # shards have a group by now
            dist.init_process_group(self._backend, store=HashStore(), rank=0, world_size=1)
            if self._nccl is not None:
                self._nccl.first()
            self.replica.rehearse()
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
        dist.init_process_group(self._backend, store=store, rank=rank, world_size=size)
        self.replica.enter(rank, size)
        connections.formed()
        if self._nccl is not None:
            connections.also_break(self._nccl.abort)
            control.extend(round, CONNECT_S)
            self._nccl.connect(control, round=round)
        store.formed()

    def form_from_environment(self) -> None:
        """Form the group as a program under torchrun does, or take the one that the program has formed."""
        self.replica.leave()
        if self._nccl is not None:
            self._nccl.give_back_settings()
            self._nccl = None
        if not dist.is_initialized():
            self._is_own = True
            of_device = "gloo" if self._device.type != "cuda" else Nccl.name if self.replica.kept else "nccl"
            dist.init_process_group(self._chosen or of_device)
        self.replica.compare()
        self.replica.enter(dist.get_rank(), dist.get_world_size())
        self.replica.wrap(is_level=False)

    def end(self) -> None:
        """Leave the last world, unless the program formed its group: torch may hang if a group is left at the end of the process."""
        self.replica.leave()
        if self._is_own:
            self.leave()
        self.replica.rest()
        if self._nccl is not None:
            self._nccl.end()

    def leave(self) -> None:
        """Drop the group and everything that refers to it."""
        self.replica.leave()
        self._store = None
        if self._nccl is not None:
            self._nccl.leave()
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = self._excepthook
        gc.collect(0)

    def settle(self) -> bool:
        """Wait for the collectives that a GPU still does. Return whether there may have been some that end without an error."""
        if self._nccl is None:
            return False
        self._nccl.synchronize()
        return True

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    @property
    def _backend(self) -> str:
        return "gloo" if self._nccl is None else self._nccl.name

    def _nccl_of_model(self) -> typing.Optional[Nccl]:
        if self._chosen == "gloo" or self._device.type != "cuda" or not dist.is_nccl_available():
            return None
        nccl = Nccl(self._device, self.replica.kept)
        nccl.take_settings()
        return nccl
