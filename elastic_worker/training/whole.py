"""Keeps the whole model on each worker, and averages gradients over the present world with DistributedDataParallel.

`fsdp.Unit` has the same methods for a model that is sharded inside a pod. Run uses one of the two.
"""

import inspect
import time
import typing

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elastic_worker.training import mistakes

Hook = typing.Tuple[typing.Any, typing.Callable[..., typing.Any]]


class ReplicaLost(RuntimeError):
    """Gradients of this step were not averaged over all replicas. Nothing was written; try the step again in the next world."""


def obstacle() -> str:
    """Return why this torch cannot form a world in process; empty if it can.

    Without `init_sync`, a new wrapper waits for all ranks, and a rank that still pulls the state would keep them until they give up.
    """
    if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters:
        return ""
    return "torch {} is too old, because its DistributedDataParallel has no init_sync".format(torch.__version__)


class Whole:
    """The replica of one worker."""

    index, count = 0, 1
    """Number of this shard, and how many shards are a replica."""
    kept = ()  # type: typing.Sequence[dist.ProcessGroup]
    """Groups that outlive a world."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, ddp: "typing.Mapping[str, typing.Any]") -> None:
        if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
            raise ValueError("The model is sharded, but shards is not given. Pass Run(..., shards=pod), and shard it over pod.mesh.")
        mistakes.check_parameters(optimizer, {id(parameter) for parameter in model.parameters()}, mistakes.OF_MODEL)
        self.wrapper = None  # type: typing.Optional[DistributedDataParallel]
        """The only reference to the wrapper: every further one would keep 3 threads and 5 descriptors of its group."""
        self.hooks = []  # type: typing.List[Hook]
        """Communication hooks that each new wrapper gets."""
        self.states = {"model": model, "optimizer": optimizer}  # type: typing.Dict[str, typing.Any]
        """The objects that have the state of this replica's shard."""
        self._model = model
        self._ddp = dict(ddp)
        self._check = self._settle = lambda: None  # type: typing.Callable[[], None]
        self.waited = lambda since: None  # type: typing.Callable[[float], None]
        """Hears since when this worker has waited for its peers."""
        self._parallel = Parallel(self)

    def watch(self, check: "typing.Callable[[], None]", settle: "typing.Callable[[], None]") -> None:
        """Call `check` before collectives, and `settle` after them. They raise RuntimeError if the world has ended."""
        self._check, self._settle = check, settle

    @property
    def model(self) -> typing.Any:
        """Return the model to call in a step."""
        return self._model if self.wrapper is None else self._parallel

    def is_first(self, rank: int) -> bool:
        """Return whether this worker belongs to the first replica, which writes the saves."""
        return rank == 0

    # --- worlds

    def compare(self) -> None:
        """Check that all workers of a new world fit together."""

    def enter(self, rank: int, size: int) -> None:
        """Form the groups that a world needs besides the default group."""

    def wrap(self, *, is_level: bool) -> None:
        """Make the wrapper. Its buckets are new, as on all other ranks; ranks with different buckets would end in std::terminate.

        is_level: all ranks have the same state already, so the wrapper need not send that of the first rank.
        """
        self.wrapper = None
        device = next(self._model.parameters()).device
        alone = {"init_sync": False} if is_level else {}  # type: typing.Dict[str, typing.Any]
        places = {"device_ids": [device.index]} if device.type == "cuda" else {}
        self.wrapper = _Wrapper(self._model, **{**alone, **places, **self._ddp})
        self.wrapper.waited = self.waited
        for state, hook in self.hooks:
            self.wrapper.register_comm_hook(state, hook)

    def rehearse(self) -> None:
        """Wrap the model, and do a step with a tiny one: a process's first calls take 10 ms, and hundreds of milliseconds on a GPU."""
        self.wrap(is_level=True)
        like = next(self._model.parameters())
        if like.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            tiny = DistributedDataParallel(_Tiny(like))
            tiny(torch.ones_like(tiny.module.weight)).backward()
            torch.optim.SGD(tiny.parameters(), lr=0.1).step()

    def leave(self) -> None:
        """Drop what refers to the world's group."""
        self.wrapper = None

    def rest(self) -> None:
        """End the last world."""

    # --- steps

    def begin_step(self) -> None:
        """Prepare the first backward of a step."""
        self._parallel.was_called = False
        self.sync(True)

    def sync(self, is_last: bool) -> None:
        """Average gradients in the next backward only if it is the last one of the step."""
        if self.wrapper is not None and self.wrapper.require_backward_grad_sync != is_last:  # a module's attribute is slow to write
            self.wrapper.require_backward_grad_sync = is_last

    def begin_backward(self) -> None:
        """Raise an error if the next backward could not be averaged."""
        self._check()
        if self.wrapper is not None and not self._parallel.was_called:
            raise TypeError("The loss does not come from run.model. Call run.model(x) instead of your own model: it averages gradients.")

    def end_backward(self) -> None:
        """Raise RuntimeError if gradients may be wrong. It comes before the program looks at them, as a scaler of gradients does."""
        if self.wrapper is not None and self.wrapper.require_backward_grad_sync:
            self._settle()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add values up over all workers of the world, in place."""
        if self.wrapper is not None:
            self._check()
            dist.all_reduce(values)
            if values.is_cuda:
                self._settle()
        return values

    def put_back(self) -> bool:
        """Drop what a broken step has left. Return whether the step can be tried again."""
        return True

    def meets_peers(self) -> bool:
        """Return whether the main thread may be waiting for workers of other replicas now."""
        return True

    # --- agreement with the other shards of this replica, which has only this one

    def agree(self, flag: bool) -> bool:
        """Return whether the flag is set on any shard."""
        return flag

    def tag(self, value: int) -> int:
        """Return the value of shard 0."""
        return value

    def check_step(self, *, is_written: bool) -> None:
        """Raise RuntimeError if the step has failed. It runs before the optimizer writes, and at the step's end.

        is_written: the optimizer has written already, so that the gradients were right.
        """
        if not is_written:
            self._settle()

    def give_up(self) -> None:
        """Make the next `check_step` of the other shards fail."""


class _Wrapper(DistributedDataParallel):
    """DistributedDataParallel that says how long the forward waits for the buffers of the first rank."""

    waited = staticmethod(lambda since: None)  # type: typing.Callable[[float], None]

    def _sync_buffers(self) -> None:
        since = time.perf_counter()
        super()._sync_buffers()  # type: ignore[no-untyped-call]
        self.waited(since)


class _Tiny(torch.nn.Module):
    """A model for the rehearsal. It draws no random numbers, which would be missing in the training."""

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8, device=like.device, dtype=like.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sum()


class Parallel:
    """Stands for the wrapper of the present world. A program may keep it, because it refers to no group."""

    def __init__(self, whole: Whole) -> None:
        self.was_called = False
        """Whether it was called in the present step."""
        self._whole = whole

    def __call__(self, *args: typing.Any, **named: typing.Any) -> typing.Any:
        """Run the wrapper, unless the world has ended: a collective that meets closing connections may be forgotten by gloo."""
        wrapper = self._whole.wrapper
        if wrapper is None:
            raise RuntimeError("There is no world outside of `for step in run.steps(...)`. Use your own model there.")
        self._whole._check()
        self.was_called = True
        return wrapper(*args, **named)

    def register_comm_hook(self, state: typing.Any, hook: "typing.Callable[..., typing.Any]") -> None:
        """Register a communication hook with the wrapper of this world and of all later ones."""
        self._whole.hooks.append((state, hook))
        if self._whole.wrapper is not None:
            self._whole.wrapper.register_comm_hook(state, hook)

    def __getattr__(self, name: str) -> typing.Any:
        """Return an attribute of the program's own model."""
        return getattr(self._whole._model, name)
