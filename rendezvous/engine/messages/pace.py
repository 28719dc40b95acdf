"""Messages about the time that ranks need for their steps, since protocol 1.4. They serve to find ranks that the others wait for.

The server asks with `View.pace_s`. The workers then measure their steps in windows of so many seconds, and the agents pass the means on.
"""

from __future__ import annotations

from typing import Annotated

from ..values import dataclass
from ..words import Word
from .bounds import Bound, Count, Generation, Seconds

WINDOW_S = 10.0
"""Seconds of a window."""
MOST_TOLD = 32
"""Workers of one member of which its agent speaks."""
MOST_STRAGGLERS = 8

Percent = Annotated[int, Bound(least=0, most=100)]
Microseconds = Annotated[int, Bound(least=0, most=86400 * 10**6)]


@dataclass(frozen=True)
class Pace:
    """The means over the steps of a worker's window, in microseconds a step. Without steps, nothing is known.

    compute_us: forward, backward and all other work of the program inside of a step. data_us: the wait for samples. outside_us: the
    program's work between two steps, such as a save or an evaluation. wait_us: the wait for other ranks. send_us: how long its gradients
    were on their way to the others, which is a part of this wait and perhaps of the computing.
    """

    steps: Count = 0
    compute_us: Microseconds = 0
    data_us: Microseconds = 0
    outside_us: Microseconds = 0
    wait_us: Microseconds = 0
    send_us: Microseconds = 0


@dataclass(frozen=True)
class Paces:
    """The paces of the workers of a member in this generation, by local rank.

    throttled: percent of the scheduler's periods in which the CPUs of their container were throttled. milli_cpus: its limit; 0 without one.
    """

    generation: Generation
    workers: Annotated[tuple[Pace, ...], Bound(most=MOST_TOLD)] = ()
    throttled: Percent = 0
    milli_cpus: Count = 0


class Slowness(Word):
    """The kind of a rank's slowness."""

    COMPUTE = "Compute"
    DATA = "DataLoading"
    OUTSIDE = "OutsideSteps"
    THROTTLED = "CPUThrottling"
    NETWORK = "Network"


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for. It was found after it had been slow for `for_s` seconds.

    The figures are those of that time. own_s: seconds a step that the rank needs without waiting for others; for Network, that it sends.
    usual_s: the same of the other ranks, in the median. part_s, usual_part_s: the same for the part of a step that the kind names. percent:
    own_s in percent of usual_s. among: number of ranks that were compared. throttled, milli_cpus: as in Paces.
    """

    rank: Annotated[int, Bound(least=0, most=2**31)]
    member: Annotated[str, Bound(most=253)]
    local_rank: Count
    kind: Slowness
    percent: Count
    own_s: Seconds
    usual_s: Seconds
    part_s: Seconds = 0.0
    usual_part_s: Seconds = 0.0
    for_s: Seconds = 0.0
    among: Count = 0
    throttled: Percent = 0
    milli_cpus: Count = 0
