"""Queue keys for reconciling: a key waits at most once, and no two workers process the same key at the same time.

Old and new keys take turns, so that a thousand new jobs do not delay a running one. The queue knows when a key is due and how long to hold
it back after failures, but not what a key means.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FIRST_BACK_OFF_S = 0.05
LONGEST_BACK_OFF_S = 60.0
HEARD_BACK_OFF_S = 1.0
"""The longest pause for a key that something happened to while work on it failed."""
MOST_DOUBLINGS = 16


class WorkQueue(Generic[K]):
    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: dict[K, float] = {}
        self._new: dict[K, float] = {}
        self._begun: set[K] = set()
        self._is_new_one_s_turn = False
        self._working: set[K] = set()
        self._dirty: dict[K, float] = {}
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._count = 0
        self._failures: dict[K, int] = {}
        self._forgotten: set[K] = set()
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._new) + len(self._dirty)

    def add(self, key: K) -> None:
        """Queues the key; while a worker processes it, once more afterwards."""
        if key in self._working:
            self._dirty.setdefault(key, self._clock())
        else:
            (self._ready if key in self._begun else self._new).setdefault(key, self._clock())
            self._wakeup.set()

    def add_at(self, key: K, due: float) -> None:
        """Wants the key looked at when the clock says `due`; of several such wishes the earliest stands."""
        if due <= self._clock():
            self.add(key)
        elif due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._count += 1
            heapq.heappush(self._timers, (due, self._count, key))
            self._drop_old_timers()
            self._wakeup.set()

    async def take(self) -> tuple[K, float]:
        """Return the next key, and since when it has been waiting. `done` must follow."""
        while True:
            self._ripen()
            if self._ready or self._new:
                key, since = self._next()
                self._working.add(key)
                return key, since
            self._wakeup.clear()
            pause = self._timers[0][0] - self._clock() if self._timers else None
            try:
                async with asyncio.timeout(pause):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    def done(self, key: K, *, failed: bool = False) -> None:
        """End the work on the key. After a failure the key comes back by itself, later each time."""
        self._working.discard(key)
        is_forgotten = key in self._forgotten and not failed
        self._forgotten.discard(key)
        if not is_forgotten:
            self._begun.add(key)
        if failed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            longest = LONGEST_BACK_OFF_S if self._dirty.pop(key, None) is None else HEARD_BACK_OFF_S
            self.add_at(key, self._clock() + min(FIRST_BACK_OFF_S * 2.0 ** min(failures, MOST_DOUBLINGS), longest))
            return
        self._failures.pop(key, None)
        if key in self._dirty:
            (self._new if is_forgotten else self._ready)[key] = self._dirty.pop(key)
            self._wakeup.set()

    def forget(self, key: K) -> None:
        """Forget a key whose object is gone, also while a worker processes it."""
        self._begun.discard(key)
        self._due.pop(key, None)
        self._failures.pop(key, None)
        if key in self._working:
            self._forgotten.add(key)
        self._drop_old_timers()

    def _next(self) -> tuple[K, float]:
        is_new = bool(self._new) and (self._is_new_one_s_turn or not self._ready)
        self._is_new_one_s_turn = not is_new
        lane = self._new if is_new else self._ready
        key = next(iter(lane))
        return key, lane.pop(key)

    def _ripen(self) -> None:
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            due, _, key = heapq.heappop(self._timers)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._drop_old_timers()

    def _drop_old_timers(self) -> None:
        """Drop replaced entries of the heap, so that they never outnumber the others. A key has one due time."""
        if len(self._timers) > 2 * len(self._due):
            self._timers = [timer for timer in self._timers if self._due.get(timer[2]) == timer[0]]
            heapq.heapify(self._timers)
