"""Draw realistic elastic jobs from a seed: their arrivals, their work, and how well they scale."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

ARRIVALS_AN_HOUR = 40.0
LEAST_GPU_HOURS, MOST_GPU_HOURS = 0.1, 8.0
CONTENTION = (0.01, 0.03, 0.1, 0.4)
"""The cost of each further worker for the others, as a part of a step. Jobs with the least scale well, and those with the most hardly."""
SIZES = (4, 8, 16)
"""The values of maxReplicas."""


@dataclass(frozen=True, slots=True)
class Submitted:
    name: str
    at: float
    work: float
    """Seconds of training that one worker needs."""
    contention: float
    most: int

    def rate(self, workers: int) -> float:
        """Return the work a second."""
        return workers / (1 + self.contention * (workers - 1)) if workers > 0 else 0.0

    @property
    def shortest_s(self) -> float:
        """Return the duration on its most workers from the first second."""
        return self.work / self.rate(self.most)


def submitted(count: int, *, seed: int) -> list[Submitted]:
    draw, at, found = random.Random(seed), 0.0, []
    for number in range(count):
        at += draw.expovariate(ARRIVALS_AN_HOUR / 3600)
        hours = math.exp(draw.uniform(math.log(LEAST_GPU_HOURS), math.log(MOST_GPU_HOURS)))
        found.append(Submitted(f"job-{number}", at, hours * 3600, draw.choice(CONTENTION), draw.choice(SIZES)))
    return found
