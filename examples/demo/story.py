"""What the demo prints and waits for: a clock of plain lines, and the training as its own log lines tell it.

Knows the line format of examples/pytorch-elastic/train.py, nothing of Kubernetes or of how the lines came here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from elastic.kube.following import Condition, Event, Happening, Line, Outcome

STEP = re.compile(r"^step (\d+) world (\d+) loss ([0-9.]+)$")
FORMED = re.compile(r"^world (\d+) rank 0 starts at step (\d+)$")


class MissingStep(Exception):
    """Something the demo promises did not happen; the text says what."""


@dataclass
class Story:
    """Prints what happens with its milliseconds, and remembers the seconds that the summary shows."""

    start: float = field(default_factory=time.monotonic)
    figures: list[tuple[str, float]] = field(default_factory=list)

    def tell(self, text: str) -> float:
        now = time.monotonic()
        print(f"{(now - self.start) * 1000:8.0f} ms  {text}", flush=True)
        return now

    def figure(self, what: str, since: float) -> None:
        self.figures.append((what, time.monotonic() - since))

    def summary(self) -> None:
        width = max(len(what) for what, _ in self.figures)
        print("\nSummary")
        for what, seconds in self.figures:
            print(f"  {what:<{width}}  {seconds:7.2f} s")


@dataclass
class Training:
    """The newest step that any worker reported, and who is waiting for the next."""

    story: Story
    step: int = 0
    world: int = 0
    worlds: int = 0
    first_loss: float = 0.0
    loss: float = 0.0
    repeated: int = 0
    ended: Outcome | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, happening: Happening) -> None:
        match happening:
            case Line(_, text):
                self._read(text)
            case Condition(type, _, message):
                self.story.tell(f"job {type}: {message}")
            case Event():
                self.story.tell(f"event {happening.reason}: {happening.message}")
        self._wake()

    def end(self, outcome: Outcome) -> None:
        self.ended = outcome
        self._wake()

    def _read(self, line: str) -> None:
        if formed := FORMED.match(line):
            self.worlds += 1
            self.story.tell(f"training: a world of {formed[1]} goes on from step {formed[2]}")
            self.world = 0  # until it has made a step
        match = STEP.match(line)
        if not match:
            return
        step, world, loss = int(match[1]), int(match[2]), float(match[3])
        if world != self.world:
            self.story.tell(f"training: step {step} in a world of {world}, loss {loss:.4f}")
        self.repeated += step <= self.step
        self.step, self.world, self.loss = step, world, loss
        self.first_loss = self.first_loss or loss

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, what: str, reached: Callable[[Training], bool], *, within_s: float = 300.0) -> None:
        """Wait until the training is there; say what is missing when it is not in time, or when the job ended before."""
        try:
            async with asyncio.timeout(within_s):
                while not reached(self) and self.ended is None:
                    await self.changed.wait()
        except TimeoutError:
            raise MissingStep(f"{what}: not within {within_s:.0f} s; last seen step {self.step} in a world of {self.world}") from None
        if not reached(self):
            raise MissingStep(f"{what}: the job ended before that ({self.ended})")
