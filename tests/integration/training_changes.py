"""Random changes of a world of real training processes, for a test and a benchmark."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from training_lab import Lab

KINDS = ("add", "leave", "kill", "kill first", "stop", "two", "kill forming", "kill donor")


class Changes:
    """Injects changes one after the other, and keeps the size near the one at the start."""

    def __init__(self, lab: Lab, size: int, *, seed: int, spare: int = 2) -> None:
        self._lab, self._size, self._spare = lab, size, spare
        self._random = random.Random(seed)

    def one(self, kind: str | None = None) -> str:
        """Inject a change, wait until all train again, and return its kind."""
        world = self._lab.plane.world
        chosen = kind or self._random.choice(KINDS)
        if chosen == "kill donor" and len(world) > self._size:
            chosen = "leave"
        if kind is None and chosen not in ("add", "kill donor") and len(world) <= max(2, self._size - self._spare):
            chosen = "add"
        if kind is None and chosen == "add" and len(world) >= self._size + self._spare:
            chosen = "kill"
        getattr(self, "_" + chosen.replace(" ", "_"))()
        self._lab.settle()
        return chosen

    def pause(self) -> None:
        """Let the world train for a moment."""
        time.sleep(self._random.uniform(0.02, 0.15))

    def _add(self) -> None:
        self._lab.start_standing_by()

    def _leave(self) -> None:
        self._lab.plane.leave(self._victim())

    def _kill(self) -> None:
        self._lab.kill(self._victim())

    def _kill_first(self) -> None:
        self._lab.kill(self._lab.plane.world[0], kind="kill first")

    def _stop(self) -> None:
        self._lab.kill(self._victim(), kind="stop", sign=signal.SIGSTOP)

    def _two(self) -> None:
        self._lab.kill(*self._random.sample(self._lab.plane.world, 2 if len(self._lab.plane.world) > 2 else 1), kind="two")

    def _kill_forming(self) -> None:
        first, *others = self._random.sample(self._lab.plane.world, 2)
        self._lab.kill(first, kind="kill forming")
        self._kill_while_forming(lambda: others[0])

    def _kill_donor(self) -> None:
        """Kill the donor while a newcomer gets the state."""
        self._lab.start_standing_by("kill donor")
        self._kill_while_forming(lambda: self._lab.plane.world[0])

    def _kill_while_forming(self, victim: Callable[[], int]) -> None:
        """Kill a worker while the next world forms, unless nobody else has the state."""
        plane = self._lab.plane
        if plane.wait(lambda: plane.phase == "forming" or plane.is_calm(), 5.0) and plane.phase == "forming":
            time.sleep(self._random.uniform(0.0, 0.03))
            with plane.news:
                if plane.holders & plane.members.keys() - {victim()}:
                    self._lab.kill(victim())

    def _victim(self) -> int:
        return self._random.choice(self._lab.plane.world)
