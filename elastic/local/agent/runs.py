"""Values for the history of a pod: the runs of its containers, the results of their probes, and the reason for the pod's end.

This module decides nothing; lifecycle.py does.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a container. Times are seconds since the epoch; a run without an end still runs."""

    id: str
    attempt: int
    started_at: float
    finished_at: float | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    @property
    def running(self) -> bool:
        return self.finished_at is None

    @property
    def seconds(self) -> float:
        return 0.0 if self.finished_at is None else self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class Health:
    """Results of a running container's probes. Without probes it has started and is ready."""

    started: bool = True
    ready: bool = True
    unhealthy: str = ""
    """Why the container must be restarted, if a liveness or startup probe has failed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a pod must end, and by when: it is deleted, past its deadline, or evicted by its node."""

    kill_at: float
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class BackOff:
    """The delay before an ended container's next run: none the first time, then doubling."""

    first_s: float = 10.0
    longest_s: float = 300.0
    forget_after_s: float = 600.0

    def delay_s(self, runs: tuple[Run, ...]) -> float:
        streak = 0
        for run in reversed(runs):
            if run.seconds >= self.forget_after_s:
                break
            streak += 1
        return 0.0 if streak < 2 else min(self.first_s * 2.0 ** min(streak - 2, 30), self.longest_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything about a pod that is not in its object: its surroundings on this node and the runs of its containers."""

    runs: Mapping[str, tuple[Run, ...]]
    ip: str = ""
    host_ip: str = ""
    started_at: float | None = None
    """Time at which this node first saw the pod."""
    problem: str = ""
    """Why the pod as a whole cannot start, such as a volume that cannot be made."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why single containers cannot start, by name."""
    health: Mapping[str, Health] = field(default_factory=dict)
    terminating: Mapping[str, float] = field(default_factory=dict)
    """Containers that have been asked to end, and the times at which they are killed."""
    ending: Ending | None = None

    def of(self, container: str) -> tuple[Run, ...]:
        return self.runs.get(container, ())

    def last(self, container: str) -> Run | None:
        runs = self.of(container)
        return runs[-1] if runs else None


class Phase(enum.Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)
