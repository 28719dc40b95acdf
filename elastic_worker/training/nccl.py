"""Forms, breaks off and ends the NCCL part of a world's groups, for models on GPUs.

An NCCL collective is a kernel. If a peer is lost, the kernel waits for ever, and only `abort` ends it: without an error, and with wrong
numbers in its tensors. So the library waits for the GPU and looks at the world's state before the optimizer writes.

`abort` ends the kernels within milliseconds, but returns after half a second, because a thread of NCCL looks that often. So it runs in a
thread of its own, and the next world forms meanwhile.
"""

import os
import threading
import time
import typing

import torch
import torch.distributed as dist

from elastic_worker.training.control import Control
from elastic_worker.training.registry import KeptGroup, c10d

CONNECT_S = 10.0
"""Seconds for NCCL to connect a group. An attempt that is given up goes on in its thread until then."""
END_S = 10.0
"""Seconds for which the end of the process waits for the groups that still end."""
MOST_ENDING = 2
"""Groups that may still end while the next world forms. Each of them keeps some 20 threads and their memory."""
SETTINGS = {
    # By default, the watchdog ends the process if a collective fails.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # After a failed collective, the watchdog waits a minute for dumps that nobody reads, and no group ends before its watchdog.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    # A group that waits for a peer would hold its lock for ever.
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(int(CONNECT_S)),
}
"""torch reads them when it makes a group. A job that restarts keeps those of its user."""


class Nccl:
    """The NCCL part of the present world."""

    name = "cpu:gloo,cuda:nccl"
    """The name of the backends for `init_process_group`. CPU tensors, and our own words, go through gloo."""

    def __init__(self, device: torch.device, kept: "typing.Sequence[dist.ProcessGroup]" = ()) -> None:
        self._device = device
        self._kept = kept
        """Groups that outlive a world."""
        self._settings_before = None  # type: typing.Optional[typing.Dict[str, typing.Optional[str]]]
        self._ending = []  # type: typing.List[threading.Thread]

    # --- settings

    def take_settings(self) -> None:
        """Set the environment for groups that can be broken off."""
        if self._settings_before is None:
            self._settings_before = {name: os.environ.get(name) for name in SETTINGS}
            os.environ.update(SETTINGS)

    def give_back_settings(self) -> None:
        """Restore the environment of the user."""
        for name, value in (self._settings_before or {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._settings_before = None

    # --- a world

    def connect(self, control: Control, *, round: int) -> None:
        """Connect the groups of a world. Raise RuntimeError if a peer is lost meanwhile, if the round ends, or after CONNECT_S.

        NCCL connects in the first collective, which nothing can break off. So that runs in a thread, which is left alone if need be.
        """
        groups = self._groups()
        errors = []  # type: typing.List[typing.Optional[BaseException]]

        def first() -> None:
            error = None  # type: typing.Optional[BaseException]
            try:
                self.first(groups)
            except BaseException as caught:
                error = caught.with_traceback(None)
            with control.news:
                errors.append(error)
                control.news.notify_all()

        threading.Thread(target=first, name="elastic-nccl", daemon=True).start()
        if not control.wait_in(round, lambda: bool(errors), CONNECT_S):
            raise RuntimeError("NCCL has not connected the world within {:g} s".format(CONNECT_S))
        if errors[0] is not None:
            raise RuntimeError("NCCL has not connected the world: {}".format(errors[0])) from errors[0]

    def first(self, groups: "typing.Optional[typing.Sequence[dist.ProcessGroup]]" = None) -> None:
        """Do the first collective of each group."""
        for group in self._groups() if groups is None else groups:
            if self._backend(group) is not None:
                dist.all_reduce(torch.zeros(1, device=self._device), group=group)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the GPU has done the work of the present stream, which waits for the collectives."""
        torch.cuda.current_stream(self._device).synchronize()

    def abort(self) -> "typing.Callable[[], bool]":
        """End the kernels of the present world. Any thread may call it. Return a function that says whether this is still going on."""
        threads = [_end(backend, is_left=False) for backend in map(self._backend, self._groups()) if backend is not None]
        return lambda: any(thread.is_alive() for thread in threads)

    def leave(self) -> None:
        """Drop the groups of the present world."""
        for group in self._groups():
            backend = self._backend(group)
            KeptGroup(group).take_out()
            if backend is not None:
                self._ending.append(_end(backend, is_left=True))
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        while len(self._ending) > MOST_ENDING:
            self._ending.pop(0).join()

    def end(self) -> None:
        """Wait for the groups that still end."""
        until = time.monotonic() + END_S
        for thread in self._ending:
            thread.join(max(0.0, until - time.monotonic()))

    def _groups(self) -> "typing.List[dist.ProcessGroup]":
        return [group for group in list(c10d._world.pg_names) if not any(group is kept for kept in self._kept)]

    def _backend(self, group: "dist.ProcessGroup") -> typing.Any:
        """Return the part of a group that carries GPU tensors; None for a group of the program that has none."""
        try:
            return group._get_backend(self._device)
        except RuntimeError:
            return None


def _end(backend: typing.Any, *, is_left: bool) -> threading.Thread:
    """End the kernels of a group in a thread, and the group as well if it is left."""

    def end() -> None:
        backend.abort()
        if is_left:
            backend.shutdown()  # joins the watchdog without Python's lock, which the destructor would keep

    thread = threading.Thread(target=end, name="elastic-nccl-end", daemon=True)
    thread.start()
    return thread
