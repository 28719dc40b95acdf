"""Keep which worlds have lost a worker, for the other workers of such a world to ask.

A world is one assignment of ranks. A worker is in it from its start, or from the moment at which it gets a rank of it, until it gets
another one. This module knows neither Horovod nor the network.
"""

import threading
import typing

from elastic_worker.horovod.arrivals import Slot


class Losses:
    """Answers workers that ask whether their world has lost a worker."""

    def __init__(self, log: typing.Callable[[str], None]) -> None:
        self._log = log
        self._changed = threading.Condition()
        self._number = 0
        self._worlds: typing.Dict[Slot, int] = {}
        """The world of each worker that is in one."""
        self._processes: typing.Dict[Slot, typing.Any] = {}
        """The newest process of each slot. The end of an earlier one can become known later than the start of this one."""
        self._lost: typing.Dict[int, str] = {}
        """Why a world is lost, for each lost world that still has workers."""

    def assigned(self) -> None:
        """Note that the driver has assigned ranks for another world."""
        with self._changed:
            self._number += 1

    def started(self, slot: Slot, process: typing.Any) -> None:
        """Note that this process takes its rank in the newest world."""
        with self._changed:
            self._processes[slot] = process
            self._enter(slot)

    def ranked(self, slot: Slot, has_rank: bool) -> None:
        """Note that a worker of an earlier world got its rank in the newest one, or got none there."""
        with self._changed:
            if has_rank:
                self._enter(slot)
            else:
                self._worlds.pop(slot, None)
            self._changed.notify_all()

    def ended(self, slot: Slot, process: typing.Any, exit_code: int) -> None:
        """Note the end of a process. A worker that has finished is no loss."""
        with self._changed:
            if self._processes.get(slot) is not process:
                return
            del self._processes[slot]
            world = self._worlds.pop(slot, None)
            if exit_code and world in self._worlds.values() and world not in self._lost:
                assert world is not None
                self._lost[world] = "worker {}:{} ended with status {}".format(*slot, exit_code)
                self._log("{}; the other workers of its world shut their connections".format(self._lost[world]))
            self._changed.notify_all()

    def wait(self, slot: Slot, within_s: float) -> str:
        """Return why the world of this worker is lost; empty after this time, or once the worker is in another world."""
        with self._changed:
            world = self._worlds.get(slot)
            self._changed.wait_for(lambda: world in self._lost or self._worlds.get(slot) != world, within_s)
            return self._lost.get(world, "") if world is not None else ""

    def _enter(self, slot: Slot) -> None:
        self._worlds[slot] = self._number
        self._lost = {world: why for world, why in self._lost.items() if world in self._worlds.values()}
