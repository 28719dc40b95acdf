"""Give servers of metrics a read-only view of the autoscaler's figures for each job, and of the wanted number of workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from elastic_training.autoscale.deciding.signals import Bounds


class JobName(NamedTuple):
    kind: str
    namespace: str
    name: str

    def fields(self) -> dict[str, str]:
        """Return the job as every line of the log names it."""
        return {"kind": self.kind, "namespace": self.namespace, "job": self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One job. None: not known (yet)."""

    key: JobName
    uid: str
    replicas: int
    """As the spec says."""
    bounds: Bounds
    """The numbers that the spec allows."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job object."""
    working: int
    """Workers that train together now."""
    wanted: int | None
    """How many workers the job should have: what `desired_workers` answers. None while nothing is decided."""
    reason: str = ""
    throughput: float | None = None
    """Samples per second, or steps times workers if no samples are reported."""
    measured_at: float | None = None
    """Time of the throughput in seconds since 1970. It may be the last time at which this number of workers trained."""
    is_silent: bool = False
    """Whether the job does not report progress any more, so that its figures are old."""
    efficiency: float | None = None
    """Throughput of a worker as a part of that at minReplicas."""
    marginal_efficiency: float | None = None
    """Addition of the last worker, in the same unit."""
    goodput: float | None = None
    """The part of its time in which training came forward."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Use of the time: training, waiting, rendezvous, restart, rollback, stalled."""
    rescale_s: float | None = None
    """Seconds that a change of the number of workers costs."""
    step: int | None = None
    left_s: float | None = None
    """Until the work that the policy names is done, at the present pace."""


class Figures(Protocol):
    """All jobs with a scaling policy. It may be asked by any replica, whether it leads or not."""

    @property
    def is_known(self) -> bool:
        """False until the jobs have been seen; values are not known then, which is no error."""

    def of(self, key: JobName) -> JobFigures | None: ...

    def jobs(self, namespace: str | None = None) -> Sequence[JobFigures]: ...
