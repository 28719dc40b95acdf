"""Hold the values from which a decision about a job starts, and the decision.

Times are seconds since 1970, because the memory outlives the process that measured them.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from elastic.api.scaling import ScalingPolicy
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.measures import Sizes

CARRIERS = ("kube-controller-manager", "horizontal-pod-autoscaler")
"""Field managers of a HorizontalPodAutoscaler's writes. They carry out our wish if the policy says `through: hpa`."""


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
class Hand:
    """The number of workers that someone else has set."""

    count: int
    until: float
    who: str = ""
    at: str = ""
    """When, as the API server says."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A number of workers that is tried although the measurements speak against it, with the number before and the time.

    If it `has_failed`, the job must go back, but has not yet.
    """

    origin: int
    target: int
    at: float
    has_failed: bool = False


class Step(Enum):
    """The effect of a wish on a trial."""

    BEGINS = auto()
    FAILED = auto()
    BROKEN_OFF = auto()  # by something that says nothing about the size
    KEPT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The knowledge of former decisions."""

    sizes: Sizes = ()
    changed_at: float | None = None
    grew: bool = False
    """Was the last change that the job wanted itself for more workers?"""
    was_whole: bool = False
    """Since it grew last, the job has had all its workers."""
    reversals: int = 0
    """Changes of direction; each doubles how long the next one waits."""
    asked: int | None = None
    """The number that was decided last, until the job has it: a HorizontalPodAutoscaler looks each 15 s, and a write may fail."""
    votes: int = 0
    vote_for: int = 0
    """-1: fewer, 1: more."""
    voted_at: float = 0.0
    refused_at: float | None = None
    """Time at which the API server began to refuse some of its workers."""
    hand: Hand | None = None
    trial: Trial | None = None
    """The present trial."""
    tried_at: float | None = None
    """Time at which the last trial ended."""
    trial_doublings: int = 0
    """Number of doublings of the pause before the next trial, by the trials that ended since one was kept."""
    rescale_s: float | None = None
    """Cost of a change, as a former process measured it."""


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
    """Training has reported progress of late."""
    trouble: str = ""
    """Why the job's source of progress gives none, if it names one."""
    rescale_s: float | None = None
    """Cost of the last changes of the number of workers, in seconds without training."""
    room: int | None = None
    """Number of further workers for which the cluster has room; None if it is not known, or if the cluster grows on demand."""
    sees_nodes: bool = True
    """The autoscaler sees the cluster's nodes, and not one namespace only."""
    give_back: int = 0
    """Number of workers whose room others need first."""
    give_back_to: str = ""
    lacks: int = 0
    """Number of workers without a node, for whatever reason."""
    stuck: int = 0
    """Number of workers that have waited for room for longer than a cluster takes to make some."""
    refused: str = ""
    """Why the API server creates no more pods, such as a quota."""
    unmade: int = 0
    """Workers that it has not made for that reason."""
    work: Work = field(default_factory=Work)
    prices: tuple[float, ...] = ()
    """Prices of an hour on the nodes with room for the further workers of the next larger size, as far as there is room."""
    paid: float | None = None
    """Price of an hour of the present workers."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The wish of a policy, before the guard has looked at it. urgent: not a matter of pauses and votes. is_own_doing.

    Although urgent, it takes back growth of this autoscaler's for which there was no room, and so delays the next try. is_whole: no number
    between would do, and nobody else wants the room. trial: what becomes of one with this wish.
    """

    count: int
    reason: str
    urgent: bool = False
    is_own_doing: bool = False
    is_whole: bool = False
    trial: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeDecision:
    """How many workers the job should have, why, and what to remember. wanted: the same, or the number that somebody has set. is_whole.

    As in the wish. trouble: what keeps the policy from deciding, for the user.
    """

    count: int
    reason: str
    memory: Memory
    wanted: int
    is_whole: bool = False
    is_held: bool = False
    """It wants more workers, and has to wait for a pause or for votes."""
    trouble: str = ""
