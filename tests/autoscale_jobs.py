"""Jobs for tests of the autoscaler's decisions: signals with only their differences, and a job that trains in virtual time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from autoscale.deciding.curve import Curve, Measured, Sizes, with_rate
from autoscale.deciding.decide import decide
from autoscale.deciding.signals import Bounds, Decision, Memory, Signals
from elastic.api.scaling import ScalingPolicy

NOON = 1_800_000_000.0


def measured(rates: dict[int, float], *, spread: float = 0.0, count: int = 30) -> Sizes:
    return tuple(Measured(size, rate, (spread * rate) ** 2, count) for size, rate in sorted(rates.items()))


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
    """A job that reports, has stood still for long, and trains with as many workers as `working` says."""
    known = measured(rates or {}, spread=spread)
    memory = more.pop("memory", Memory(sizes=known))
    return Signals(
        policy=policy or ScalingPolicy(),
        bounds=Bounds(least, most, allowed, step),
        curve=Curve(known, least=least),
        memory=memory,
        **{"reports": True} | more,
    )


@dataclass
class TrainingJob:
    """A job whose throughput is `rate(workers)` with noise, measured every ten seconds and decided on after each measurement."""

    rate: Callable[[int], float]
    noise: float = 0.0
    seed: int = 0
    least: int = 1
    most: int = 8
    policy: ScalingPolicy = field(default_factory=ScalingPolicy)
    replicas: int = 1
    rescale_s: float = 2.0
    room: int | None = None
    memory: Memory = field(default_factory=Memory)
    now: float = NOON
    sizes: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def run(self, hours: float, *, every_s: float = 10.0) -> TrainingJob:
        draw = random.Random(self.seed)
        end = self.now + hours * 3600
        while self.now < end:
            self.now += every_s
            rate = self.rate(self.replicas) * max(0.05, draw.gauss(1.0, self.noise))
            self.memory = replace(self.memory, sizes=with_rate(self.memory.sizes, size=self.replicas, rate=rate))
            seen = Signals(
                policy=self.policy,
                bounds=Bounds(self.least, self.most),
                curve=Curve(self.memory.sizes, least=self.least),
                memory=self.memory,
                working=self.replicas,
                reports=True,
                rescale_s=self.rescale_s,
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
        """How often the number of workers went the other way than before."""
        path = [0, *self.sizes]
        moves = [after - before for before, after in itertools.pairwise(path)]
        return sum(1 for one, other in itertools.pairwise(moves) if one * other < 0)
