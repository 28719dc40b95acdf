"""Print the lines of the demo with their time, and follow the training by its own log lines.

Knows the line format of examples/pytorch-in-process/train.py, nothing of Kubernetes or of how the lines came here.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from view import View

from elastic.kube.following import ConditionNews, Event, Happening, Line, Outcome

STEP = re.compile(r"^step (\d+) world (\d+) loss ([0-9.]+)$")
MOST_WORKERS = 3
FORMED = re.compile(r"^world (\d+) rank 0 starts at step (\d+)$")


BARS = "▁▂▃▄▅▆▇█"
DRAWN_LOSSES = 24


class MissingStep(Exception):
    """A promise of the demo did not come true; the text names it."""


class Step(NamedTuple):
    """One step as a worker reported it, `at` seconds after the demo began."""

    at: float
    step: int
    world: int
    loss: float
    round: int
    """The number of the world, counted from the first."""


@dataclass
class Story:
    """Prints each event with its time in milliseconds, and remembers what the summary and the picture show."""

    start: float = field(default_factory=time.monotonic)
    figures: list[tuple[str, float]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    """Each event that disturbed the training, with its time."""
    waits_for: str = ""
    is_over: bool = False
    """The demo has ended, and no line is shown any more."""
    view: View | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the state of the demo meanwhile: one living line on a terminal, elsewhere a line every five seconds."""
        with View(self.standing) as self.view:
            yield
        self.view = None

    def tell(self, text: str) -> float:
        now = time.monotonic()
        self.say(f"{(now - self.start) * 1000:8.0f} ms  {text}")
        return now

    def say(self, text: str) -> None:
        if self.view is not None:
            self.view.line(text)
        else:
            print(text, flush=True)

    def mark(self, text: str) -> None:
        self.marks.append((time.monotonic() - self.start, text))

    def standing(self) -> str:
        """Return the present state in one line; "" if the story waits for nothing."""
        if self.is_over:
            return ""
        clock = f"{(time.monotonic() - self.start) * 1000:8.0f} ms  "
        waits = f"waiting for {self.waits_for}" if self.waits_for else ""
        if not self.steps:
            return clock + waits if waits else ""
        at = self.steps[-1]
        is_live = self.view is not None and self.view.lives
        world = f"{'●' * at.world}{'○' * (MOST_WORKERS - at.world)} {at.world}" if is_live else f"{at.world}"
        curve = curve_of([step.loss for step in self.steps]) if is_live else ""
        return clock + "  ".join(filter(None, (f"world {world}", f"step {at.step}", f"loss {at.loss:.6f}", waits, curve)))

    def figure(self, what: str, since: float) -> None:
        self.figures.append((what, time.monotonic() - since))

    def pause(self, what: str, since: float) -> None:
        """Add the longest time between two steps from this moment on to the figures, with the step that was under way."""
        at = [step.at for step in self.steps]
        first = next((number for number, moment in enumerate(at) if moment >= since - self.start), len(at))
        gaps = [later - earlier for earlier, later in zip(at[max(0, first - 1) :], at[first or 1 :], strict=False)]
        self.figures.append((what, max(gaps, default=0.0)))

    def summary(self) -> None:
        width = max(len(what) for what, _ in self.figures)
        print("\nSummary")
        for what, seconds in self.figures:
            print(f"  {what:<{width}}  {seconds:7.2f} s")


def curve_of(losses: Sequence[float]) -> str:
    """Return all losses so far as a few bars on a logarithmic scale."""
    logs = [math.log(max(loss, 1e-12)) for loss in losses]
    chosen = [logs[len(logs) * at // DRAWN_LOSSES] for at in range(DRAWN_LOSSES)] if len(logs) > DRAWN_LOSSES else logs
    least, most = min(chosen), max(chosen)
    return "".join(BARS[round((value - least) / (most - least) * (len(BARS) - 1))] if most > least else BARS[0] for value in chosen)


@dataclass
class Training:
    """The state of the training that scenes wait for, as its workers and the cluster report it."""

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
            case ConditionNews(type, _, message):
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
        self.story.steps.append(Step(time.monotonic() - self.story.start, step, world, loss, self.worlds))
        self.first_loss = self.first_loss or loss

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, what: str, reached: Callable[[Training], bool], *, within_s: float = 300.0) -> None:
        """Wait until the training has reached this. Raise with what is missing if that takes too long or the job ends before."""
        self.story.waits_for = what
        try:
            async with asyncio.timeout(within_s):
                while not reached(self) and self.ended is None:
                    await self.changed.wait()
        except TimeoutError:
            raise MissingStep(f"{what}: not within {within_s:.0f} s; last seen step {self.step} in a world of {self.world}") from None
        if not reached(self):
            raise MissingStep(f"{what}: the job ended before that ({self.ended})")
