"""The process group of a world, and the wrapper that averages gradients over it: formed again for each world, with gloo.

Another way to form a group, such as `_reconfigure` of torch 2.14 or NCCL, is another class with the methods of `Group`.
"""

import gc
import typing

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control
from elastic_worker.training.exchange import Exchange

FORMING_S = 3.0
FORMING_PER_RANK_S = 0.05
"""Seconds that a group may take to form, for each rank in addition. Then Control breaks it off: gloo itself waits much longer."""

Hook = typing.Tuple[typing.Any, typing.Callable[..., typing.Any]]


def forming_s(size: int) -> float:
    """Return the seconds that a group of this size may take to form."""
    return FORMING_S + FORMING_PER_RANK_S * size


class Group:
    """The default process group, so that `dist.all_reduce(x)` of the program means the present world."""

    def __init__(self, model: torch.nn.Module, ddp: "typing.Mapping[str, typing.Any]") -> None:
        self.wrapper = None  # type: typing.Optional[DistributedDataParallel]
        """The only reference to the wrapper: every further one would keep 3 threads and 5 descriptors of its group."""
        self.hooks = []  # type: typing.List[Hook]
        """Communication hooks that each new wrapper gets."""
        self._model = model
        self._ddp = dict(ddp)
        self._is_own = False

    def rehearse(self) -> None:
        """Form a group of this process alone, wrap the model once, and leave the group.

        The first time takes torch's imports and many first calls. During a change, all others would wait for them.
        """
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
            self.wrap(is_level=True)
            self.leave()

    def form(self, control: Control, connections: Connections, *, round: int, rank: int, size: int) -> None:
        """Form the group of a round. Raises RuntimeError if a peer is lost meanwhile or the round has ended."""
        self._is_own = True
        connections.begin(size)
        store = Exchange(control, connections, round=round, timeout_s=forming_s(size))
        # gloo connects all pairs here. TORCH_GLOO_LAZY_INIT=1 would form faster, but a peer that dies meanwhile would then be met in the
        # first collective, which waits for its connection on no socket and five times as long as torch's timeout.
        # The number of groups is a part of the keys in the store. After a failed attempt the ranks would never meet again.
        dist.distributed_c10d._world.group_count = 0
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        connections.formed()

    def form_from_environment(self) -> None:
        """Form the group as a program under torchrun does, or take the one that the program has formed."""
        if not dist.is_initialized():
            self._is_own = True
            is_on_gpu = next(self._model.parameters()).device.type == "cuda"
            dist.init_process_group("nccl" if is_on_gpu else "gloo")

    def wrap(self, *, is_level: bool) -> None:
        """Make the wrapper. Its buckets are new, as on all other ranks; ranks with different buckets would end in std::terminate.

        is_level: all ranks have the same state already, so the wrapper need not send that of the first rank.
        """
        self.wrapper = None
        device = next(self._model.parameters()).device
        places = {"device_ids": [device.index]} if device.type == "cuda" else {}
        self.wrapper = DistributedDataParallel(self._model, init_sync=not is_level, **{**places, **self._ddp})
        for state, hook in self.hooks:
            self.wrapper.register_comm_hook(state, hook)

    def end(self) -> None:
        """Drop the wrapper, and the group unless the program formed it: torch may hang if a group is left at the end of the process."""
        self.wrapper = None
        if self._is_own:
            self.leave()

    def leave(self) -> None:
        """Drop the group and everything that refers to it."""
        self.wrapper = None
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect(0)


class Parallel:
    """Stands for the wrapper of the present world; it may be kept, because it refers to no group."""

    def __init__(self, group: Group, model: torch.nn.Module, check: "typing.Callable[[], None]") -> None:
        self.was_called = False
        """Whether it was called in the present step."""
        self._group = group
        self._check = check
        self._model = model

    def __call__(self, *args: typing.Any, **named: typing.Any) -> typing.Any:
        """Run the wrapper, unless the world has ended: a collective that meets closing connections may be forgotten by gloo."""
        self._check()
        self.was_called = True
        wrapper = self._group.wrapper
        if wrapper is None:
            raise RuntimeError("There is no world outside of `for step in run.steps(...)`. Use your own model there.")
        return wrapper(*args, **named)

    def register_comm_hook(self, state: typing.Any, hook: "typing.Callable[..., typing.Any]") -> None:
        """Register a communication hook with the wrapper of this world and of all later ones."""
        self._group.hooks.append((state, hook))
        if self._group.wrapper is not None:
            self._group.wrapper.register_comm_hook(state, hook)

    def __getattr__(self, name: str) -> typing.Any:
        """Return an attribute of the program's own model."""
        return getattr(self._model, name)
