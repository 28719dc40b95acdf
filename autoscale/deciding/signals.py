"""Hold the values from which a decision about a job starts, and the decision.

Times are seconds since 1970, because the memory outlives the process that measured them.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from elastic.api.scaling import ScalingPolicy
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.measures import Sizes

CARRIERS = ("kube-controller-manager", "horizontal-pod-autoscaler")
"""Field managers of a HorizontalPodAutoscaler's writes. With `through: hpa`, they write the number that we decided."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of workers that a job may have."""

    least: int
    most: int
    allowed: tuple[int, ...] = ()
    step: int = 1

    def largest(self, count: int) -> int:
        """Return the largest allowed number up to `count`, or the least number if no number is allowed."""
        count = min(count, self.most)
        if self.allowed:
            return max((size for size in self.allowed if self.least <= size <= count), default=self.least)
        return max(count - count % self.step, self.least)

    def allows(self, count: int) -> bool:
        return self.least <= count <= self.most and self.largest(count) == count

    def above(self, count: int) -> int | None:
        """Return the smallest allowed number that is at least `count`, or None."""
        if self.allowed:
            return min((size for size in self.allowed if count <= size <= self.most), default=None)
        found = -(-max(count, self.least) // self.step) * self.step
        return found if found <= self.most else None

    def below(self, count: int) -> int | None:
        """Return the largest allowed number below `count`, or None."""
        found = self.largest(count - 1)
        return found if found < count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSize:
    """The number of workers that a user or another controller has set, and the time until which it applies."""

    count: int
    until: float
    who: str = ""
    at: str = ""
    """Time of that change, from the API server."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A size that we try although the measurements advise against it."""

    origin: int
    """Number of workers before the trial."""
    target: int
    at: float
    has_failed: bool = False
    """Whether the job must go back to `origin`, but has not yet."""


class Step(Enum):
    """The effect of a wish on a trial."""

    BEGINS = auto()
    FAILED = auto()
    BROKEN_OFF = auto()  # interrupted by an event that is unrelated to the size
    KEPT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Facts from earlier decisions."""

    sizes: Sizes = ()
    changed_at: float | None = None
    grew: bool = False
    """Whether our last change added workers."""
    was_whole: bool = False
    """Whether the job has had all its workers at some time since it last grew."""
    reversals: int = 0
    """Number of changes of direction. Each doubles the wait before the next one."""
    asked: int | None = None
    """The last decided number; None once the job has it. A write may fail, and a HorizontalPodAutoscaler looks only every 15 s."""
    votes: int = 0
    vote_for: int = 0
    """-1: fewer, 1: more."""
    voted_at: float = 0.0
    refused_at: float | None = None
    """Time at which the API server began to refuse some of its workers."""
    hand: ExternalSize | None = None
    """The number that a user or another controller has set."""
    trial: Trial | None = None
    """The present trial."""
    tried_at: float | None = None
    """Time at which the last trial ended."""
    trial_doublings: int = 0
    """Number of doublings of the pause before the next trial, caused by the trials that ended since one was kept."""
    rescale_s: float | None = None
    """Seconds without training that a change costs, as an earlier process measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work that is done and left, in the unit of the rates; None if it is not known."""

    left: float | None = None
    done: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """All that is known about one job."""

    policy: ScalingPolicy
    bounds: Bounds
    curve: Curve
    memory: Memory = field(default_factory=Memory)
    working: int = 0
    """Workers that train together now."""
    reports: bool = False
    """Whether training has reported progress recently."""
    trouble: str = ""
    """Why the job's source of progress gives none, if it names one."""
    rescale_s: float | None = None
    """Cost of the last changes of the number of workers, in seconds without training."""
    room: int | None = None
    """Number of further workers for which the cluster has room; None if it is not known, or if the cluster grows on demand."""
    sees_nodes: bool = True
    """Whether the autoscaler can read nodes. It cannot if it is limited to one namespace."""
    give_back: int = 0
    """Number of workers to remove so that pods with a higher claim fit."""
    give_back_to: str = ""
    lacks: int = 0
    """Number of workers without a node, for whatever reason."""
    stuck: int = 0
    """Number of workers that have waited for room for longer than a cluster takes to make some."""
    refused: str = ""
    """Why the API server creates no more pods, such as a quota."""
    unmade: int = 0
    """Number of workers that the API server has not created for that reason."""
    work: Work = field(default_factory=Work)
    prices: tuple[float, ...] = ()
    """Prices of an hour on the nodes with room for the further workers of the next larger size, as far as there is room."""
    paid: float | None = None
    """Price of an hour of the present workers."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The wish of a policy, before the guard has looked at it."""

    count: int
    reason: str
    urgent: bool = False
    """Whether it skips pauses and votes."""
    is_own_doing: bool = False
    """Whether it reverses growth of this autoscaler for which there was no room. This delays the next attempt, although it is urgent."""
    is_whole: bool = False
    """Whether the size is all or nothing, and only for room that no other job wants."""
    trial: Step | None = None
    """Its effect on the current trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeDecision:
    """The number of workers that a job should have, the reason, and the memory to store."""

    count: int
    reason: str
    memory: Memory
    wanted: int
    """The same number as `count`, or the number that a user has set."""
    is_whole: bool = False
    """As in Wish."""
    is_held: bool = False
    """Whether the job wants more workers but must wait for a pause or for votes."""
    trouble: str = ""
    """The reason why the policy cannot decide, for the user."""
