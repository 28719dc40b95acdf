"""Decide which of the listed hosts Horovod's driver may give ranks to, if the training program uses our library.

Horovod assigns ranks first and then starts a new host's workers. The others stand still meanwhile, and they end if a new worker is too
slow. With the library, a worker asks for its place before it initialises Horovod. So the workers of new hosts start at once, while the
others train. A host is offered to the driver when all of its workers have asked. A host whose worker has ended is offered again in the
same way.
This module knows neither Horovod nor the network. `start` starts a worker early, and `stop` ends it.
"""

import threading
import time
import typing

Slot = typing.Tuple[str, int]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
LIVED_S = 60.0
"""Seconds after which a worker has run long enough that its host's former failures do not count any more."""


class Place(typing.NamedTuple):
    """A worker's place in the world, in the words of Horovod's variables."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Workers(typing.Protocol):
    """The part of the driver that is needed here."""

    def is_assigned(self, host: str) -> bool: ...

    def place(self, slot: Slot) -> typing.Optional[Place]:
        """Return the worker's place, or None while the driver has no place for it."""

    def start(self, slot: Slot) -> None: ...

    def stop(self, slot: Slot) -> None: ...

    def assign_anew(self, slot: Slot) -> None:
        """Note that this worker, which waits for its place, is ready for another one. Does not block."""


class WorldLost(Exception):
    """A worker of this world ended before it had initialised Horovod, and others already wait for it."""


class Arrivals:
    def __init__(self, workers: Workers, clock: typing.Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._changed = threading.Condition()
        self._early: typing.Dict[Slot, float] = {}
        """Start times of workers that have no rank yet."""
        self._working: typing.Dict[Slot, float] = {}
        """Start times of workers that have a rank."""
        self._fresh: typing.Set[Slot] = set()
        """Workers with a rank that have not initialised Horovod yet."""
        self._arrived: typing.Set[Slot] = set()
        self._failures: typing.Dict[str, int] = {}
        self._again_at: typing.Dict[str, float] = {}
        self._is_broken = False
        """A fresh worker has ended, so this world will not meet."""
        self._ready_again: typing.Set[Slot] = set()
        self._has_met = False
        self.is_used = False
        """Whether a worker has asked for its place, which only our library does."""

    def offered(self, listed: typing.Mapping[str, int]) -> typing.Dict[str, int]:
        """Return the hosts for the driver. Start the workers of other hosts, and end those of hosts that are not listed any more."""
        with self._changed:
            if not self.is_used:
                return dict(listed)
            offered, wanted = {}, []
            for host, slots in listed.items():
                all_slots = [(host, number) for number in range(slots)]
                if self._is_at_work(host) or all(slot in self._early and slot in self._arrived for slot in all_slots):
                    offered[host] = slots
                elif self._clock() >= self._again_at.get(host, 0.0):
                    wanted += [slot for slot in all_slots if slot not in self._early]
            surplus = [slot for slot in self._early if slot[0] not in listed]
            for slot in wanted:
                self._early[slot] = self._clock()
                self._workers.start(slot)
            for slot in surplus:
                self._workers.stop(slot)
            return offered

    def _is_at_work(self, host: str) -> bool:
        return self._workers.is_assigned(host) and any(slot[0] == host for slot in self._working)

    def given_rank(self, slot: Slot) -> bool:
        """Note that the driver starts a worker. Return whether it was started early, and so needs no process now."""
        with self._changed:
            was_early = self._early.pop(slot, None) is not None
            self._working[slot] = self._clock()
            self._fresh.add(slot)
            self._changed.notify_all()
            return was_early

    def assigned(self) -> None:
        """Note that the driver has assigned ranks again."""
        with self._changed:
            self._is_broken = False
            self._ready_again.clear()
            self._changed.notify_all()

    def ended(self, slot: Slot, is_failure: bool) -> None:
        """Note that a worker's process has ended. If the worker has finished, its host stays, because the others will finish soon too."""
        with self._changed:
            was_early, is_assigned = slot in self._early, self._workers.is_assigned(slot[0])
            if was_early or is_failure:
                began = self._early.pop(slot, None) or self._working.pop(slot, None) or self._clock()
                if was_early or is_assigned:
                    self._pause(slot[0], self._clock() - began)
            self._is_broken |= slot in self._fresh
            self._fresh.discard(slot)
            self._arrived.discard(slot)
            self._changed.notify_all()

    def _pause(self, host: str, lived_s: float) -> None:
        failures = self._failures[host] = 1 if lived_s >= LIVED_S else self._failures.get(host, 0) + 1
        self._again_at[host] = self._clock() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10))

    def meet(self, slot: Slot, within_s: float) -> typing.Optional[Place]:
        """Wait until this worker has a place and all workers of its world are here, and return the place. Return None after this time."""
        until = self._clock() + within_s
        with self._changed:
            self.is_used = True
            self._arrived.add(slot)
            self._changed.notify_all()
            while True:
                if self._is_broken and slot in self._fresh:
                    self._leave_broken(slot)
                elif slot in self._fresh and self._fresh <= self._arrived and (place := self._workers.place(slot)) is not None:
                    self._fresh.discard(slot)
                    self._arrived.discard(slot)
                    self._has_met = True
                    self._changed.notify_all()
                    return place
                left_s = until - self._clock()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def _leave_broken(self, slot: Slot) -> None:
        """Leave a world whose fresh worker has ended.

        In the first world all workers are here, and the driver can assign ranks without the lost worker. Later, the others wait for it
        already, and a worker that got a rank without them would begin the training from its start.
        """
        if self._has_met:
            raise WorldLost("a worker of this world was lost before it had initialised Horovod")
        if slot not in self._ready_again:
            self._ready_again.add(slot)
            self._workers.assign_anew(slot)
