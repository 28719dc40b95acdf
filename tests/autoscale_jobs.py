"""Build jobs for tests of the autoscaler's decisions: signals by their differences, and a job that trains in virtual time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.api.scaling import ScalingPolicy
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.measures import Measured, Sizes, with_rate
from elastic_training.autoscale.deciding.signals import Bounds, Memory, Signals, SizeDecision, Work
from elastic_training.autoscale.deciding.training import Training, heard

NOON = 1_800_000_000.0


def measured(rates: dict[int, float], *, spread: float = 0.0, count: int = 30, at: float = NOON) -> Sizes:
    return tuple(Measured(size, rate, (spread * rate) ** 2, count, at=at) for size, rate in sorted(rates.items()))


def signals(
    rates: dict[int, float] | None = None,
    *,
    policy: ScalingPolicy | None = None,
    least: int = 1,
    most: int = 8,
    allowed: tuple[int, ...] = (),
    step: int = 1,
    spread: float = 0.0,
    **more: Any,
) -> Signals:
    """Return the signals of a job that reports progress and has measured these rates by its number of workers."""
    known = measured(rates or {}, spread=spread)
    memory = more.pop("memory", Memory(sizes=known))
    return Signals(
        policy=policy or ScalingPolicy(),
        bounds=Bounds(least, most, allowed, step),
        curve=Curve(known, least=least, now=NOON),
        memory=memory,
        **{"reports": True} | more,
    )


def turns(path: list[int]) -> int:
    """Return how often the number of workers changed its direction."""
    moves = [after - before for before, after in itertools.pairwise(path)]
    return sum(1 for one, other in itertools.pairwise(moves) if one * other < 0)


@dataclass
class TrainingJob:
    """A job whose throughput is `rate(workers)` with noise. It is measured every ten seconds, and a decision follows each measurement."""

    rate: Callable[[int], float]
    noise: float = 0.0
    seed: int = 0
    least: int = 1
    most: int = 8
    policy: ScalingPolicy = field(default_factory=ScalingPolicy)
    replicas: int = 1
    rescale_s: float = 2.0
    room: int | None = None
    left: float | None = None
    memory: Memory = field(default_factory=Memory)
    now: float = NOON
    sizes: list[int] = field(default_factory=list)
    decisions: list[SizeDecision] = field(default_factory=list)

    def run(self, hours: float, *, every_s: float = 10.0) -> TrainingJob:
        draw = random.Random(self.seed)
        end = self.now + hours * 3600
        while self.now < end:
            self.now += every_s
            rate = self.rate(self.replicas) * max(0.05, draw.gauss(1.0, self.noise))
            self.memory = replace(self.memory, sizes=with_rate(self.memory.sizes, size=self.replicas, rate=rate, now=self.now))
            seen = Signals(
                policy=self.policy,
                bounds=Bounds(self.least, self.most),
                curve=Curve(self.memory.sizes, least=self.least, now=self.now),
                memory=self.memory,
                working=self.replicas,
                reports=True,
                rescale_s=self.rescale_s,
                work=Work(left=self.left),
                room=None if self.room is None else self.room - self.replicas,
            )
            decision = decide(seen, self.replicas, self.now)
            self.decisions.append(decision)
            self.memory = decision.memory
            if decision.count != self.replicas:
                self.sizes.append(decision.count)
            self.replicas = decision.count
        return self

    @property
    def turns(self) -> int:
        return turns([0, *self.sizes])


@dataclass
class ReportingJob:
    """A job that reports its steps each five seconds on a loaded machine. All facts come from its messages, also the cost of a change.

    Each worker makes two steps a second, less the share that the others take from it (`contention`). Now and then it makes a third of that.
    """

    seed: int
    noise: float = 0.3
    contention: float = 0.0
    rescale_s: float = 12.0
    most: int = 4
    policy: ScalingPolicy = field(default_factory=lambda: ScalingPolicy(cooldown_seconds=5, min_gain_percent=20))
    now: float = NOON
    replicas: int = 1
    generation: int = 1
    step: float = 0.0
    memory: Memory = field(default_factory=Memory)
    training: Training = field(default_factory=Training)
    changes: list[tuple[float, int]] = field(default_factory=list)
    """The time of each change, in seconds from the start, and the number of workers after it."""

    def run(self, seconds: float) -> ReportingJob:
        draw = random.Random(self.seed)
        while self.now < NOON + seconds:
            self.now += 5
            rate = 2 / (1 + self.contention * (self.replicas - 1))
            self.step += 5 * rate * max(0.1, draw.gauss(1, self.noise)) * (0.3 if draw.random() < 0.1 else 1.0)
            self._says(self.replicas, int(self.step))
            decision = decide(self._signals(), self.replicas, self.now)
            self.memory = decision.memory
            if decision.count != self.replicas:
                self._rescale(decision.count, self.rescale_s * draw.uniform(0.7, 1.3))
        return self

    def _signals(self) -> Signals:
        return Signals(
            policy=self.policy,
            bounds=Bounds(1, self.most),
            curve=Curve(self.memory.sizes, least=1, now=self.now),
            memory=self.memory,
            working=self.replicas,
            reports=True,
            rescale_s=self.training.rescale_s,
        )

    def _rescale(self, count: int, cost_s: float) -> None:
        self.changes.append((self.now - NOON, count))
        self._says(0, None, phase="re-forming")
        self.now += 0.3 * cost_s
        self.replicas, self.generation = count, self.generation + 1
        self._says(count, None)
        self.now += 0.7 * cost_s
        self.step += 1
        self._says(count, int(self.step))

    def _says(self, size: int, step: int | None, *, phase: str = "running") -> None:
        progress = TrainingProgress(job="job", generation=self.generation, phase=phase, size=size, step=step, highest=int(self.step))
        self.training, rate = heard(self.training, progress, self.now)
        if rate is not None:
            self.memory = replace(self.memory, sizes=with_rate(self.memory.sizes, size=size, rate=rate, now=self.now))
