"""Keep how long the ranks of a job need for their steps, and which of them are slow."""

from __future__ import annotations

from collections.abc import Mapping

from ..values import dataclass, field


@dataclass(frozen=True)
class RankPace:
    """The means of one rank's window, in seconds a step. parts: computing, loading samples, and work between two steps.

    send_s: how long its gradients were on their way to other ranks.
    """

    steps: int
    parts: tuple[float, float, float]
    wait_s: float
    send_s: float = 0.0

    @property
    def own_s(self) -> float:
        """Return the time of a step that the rank does not wait for others."""
        return sum(self.parts)

    @property
    def step_s(self) -> float:
        """Return the time from step to step."""
        return self.own_s + self.wait_s


@dataclass(frozen=True)
class Told:
    """The newest window of one member's ranks, by local rank. throttled, milli_cpus: of its container, as in messages.pace."""

    at: float
    ranks: tuple[RankPace, ...]
    throttled: int = 0
    milli_cpus: int = 0


@dataclass(frozen=True)
class Finding:
    """The cause of a rank's slowness, with figures of the time at which it was found.

    part: the position in RankPace.parts, or the number of parts if the rank sends slowly.
    """

    rank: int
    part: int
    is_throttled: bool
    percent: int
    own_s: float
    usual_s: float
    part_s: float
    usual_part_s: float
    for_s: float
    among: int
    throttled: int
    milli_cpus: int


@dataclass(frozen=True)
class Record:
    """The last windows of one rank. pod: the incarnation of its member.

    slow, fast: how many windows in a row it was slow, or was not. differs: how many in a row it was slow in another way than was found.
    """

    pod: str
    at: float
    window_s: float
    since: float = 0.0
    slow: int = 0
    fast: int = 0
    differs: int = 0
    found: Finding | None = None


@dataclass(frozen=True)
class Paces:
    """The paces of a job. row: the windows since the last comparison. compared: how many comparisons there were."""

    generation: int = 0
    row: Mapping[str, Told] = field(default_factory=dict)
    records: Mapping[tuple[str, int], Record] = field(default_factory=dict)
    """By member and local rank, of the ranks that were slow of late."""
    compared: int = 0
