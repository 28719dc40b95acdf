"""Hold a job with a scaling policy as the API has it, and the facts that a round of decisions has about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.api.scaling import DecisionRecord, ProgressSource, ScalingPolicy
from elastic_training.autoscale.deciding.cluster import Shape
from elastic_training.autoscale.deciding.signals import Bounds, Memory, SizeDecision
from elastic_training.autoscale.deciding.training import Training
from elastic_training.autoscale.figures import JobFigures, JobName


@dataclass(frozen=True, slots=True)
class SizeOwner:
    """The client that set the number of workers, by the field's managers."""

    manager: str
    is_scale: bool
    """Whether it used the subresource scale."""
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledJob:
    key: JobName
    uid: str
    policy: ScalingPolicy
    bounds: Bounds
    replicas: int
    shape: Shape
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_active: bool = True
    """Ours, and neither over, nor suspended, nor being deleted."""
    fixed: str = ""
    """Why its number of workers is not to be changed."""
    owners: tuple[SizeOwner, ...] = ()
    record: DecisionRecord | None = None
    progress: ProgressSource | None = None
    container: str | None = None
    """Name of the container that trains."""
    refused: str = ""
    """Why the API server creates no more of its pods."""


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A job without a scaling policy. `least` is its smallest number of workers; all of them if it is not elastic."""

    uid: str
    least: int
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One job, for one round."""

    seen: ScaledJob
    training: Training = field(default_factory=Training)
    trouble: str = ""
    """Why its source of progress gives no progress, if it names one."""
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class Outcome:
    decision: SizeDecision
    figures: JobFigures
