"""Define the actions of a plan: objects to make, change or delete, messages to the rendezvous server, news for the user.

The apply step decides how and in which order they are done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elastic.api.book import Charge, Leaving
from elastic.api.job import JobStatus
from elastic.api.words import Cause
from elastic.etcd.place import EtcdPlace
from elastic.kube.resources import Object, Resource
from elastic.membership.hosts import HostFacts
from elastic.membership.wire import Restart


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object. If it exists already and is ours, the action counts as done."""

    resource: Resource
    object: Object

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Update:
    """Merge a change into an object of ours."""

    resource: Resource
    name: str
    change: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this very object, and not a namesake made since."""

    resource: Resource
    name: str
    uid: str
    grace_s: int | None = None
    makes_room: bool = False
    """A pod that this plan creates takes its place: one fewer is created as long as this one is not being deleted."""


@dataclass(frozen=True, slots=True)
class SetCondition:
    """Write one condition into the status of this very pod; its other conditions stay."""

    pod: str
    uid: str
    condition: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the pod that the same request writes, so that they never disagree with the condition."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job, because its time after its end has passed."""


@dataclass(frozen=True, slots=True)
class End:
    """A container's end, which a broken connection does not show: which run of which pod, and its cause."""

    member: str
    pod_uid: str
    run: int
    cause: Cause
    is_last: bool = False
    """Whether the whole pod has ended."""
    usage_error: bool = False
    """Its agent said that it did not come to the rendezvous, because its command is wrong."""
    own_limit: bool = False
    """The kubelet evicted the pod because the pod exceeded its own storage limit."""

    @property
    def id(self) -> str:
        return f"{self.pod_uid}/{self.run}"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits that end a job: its restarts, and the time without progress of training."""

    max_restarts: int | None = None
    by_cause: tuple[tuple[str, int], ...] = ()
    window_s: int | None = None
    without_progress: int | None = None
    hang_s: int | None = None
    first_step_s: int = 600
    same_error: int | None = None
    pace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SetExpectation:
    """Send the rendezvous server the whole expectation. It is sent first; deletions wait until it is acknowledged."""

    members: tuple[str, ...]
    pending: tuple[str, ...]
    leaving: tuple[Leaving, ...]
    ended: tuple[End, ...]
    least: int
    most: int
    sizes: tuple[int, ...]
    budget: Budget
    restarts: tuple[tuple[str, int], ...]
    grace_s: float
    floor: int
    finished: tuple[str, ...] = ()
    term: int = 0
    unsettled: tuple[Restart, ...] = ()
    settled_to: int = 0
    closed: str = ""
    charged: tuple[Charge, ...] = ()
    fruitless: int = 0
    step: int | None = None
    when_replaced: frozenset[str] = frozenset()
    """Workers of `leaving` that only may have to go, and keep their place until another worker takes it."""
    state_s: float = 30.0
    hosts: HostFacts | None = None
    """Hosts of a job whose launcher starts the workers."""
    newcomers: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    """The workers with the state of training that may come back. For `await_s` no world is formed without the state."""
    await_s: float = 0.0
    place: EtcdPlace | None = None
    """Place in the etcd in which the job meets. The expectation is written there instead of being sent to the server."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Tell the rendezvous server, or the etcd at `place`, to forget this job."""

    is_awaited: bool = False
    """Whether a later plan needs to know that the job has been forgotten."""
    place: EtcdPlace | None = None


Action = Create | Update | Delete | SetCondition | DeleteJob | SetExpectation | Forget


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """The version of an object that a plan has seen."""

    resource: Resource
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event of the job. The same news about the same object is written once: `about` names the object, such as a pod's uid."""

    type: str
    reason: str
    message: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions, status and messages, and the time to look again although nothing happened."""

    actions: tuple[Action, ...] = ()
    status: JobStatus | None = None
    """None: as it is."""
    news: tuple[JobEvent, ...] = ()
    look_again_at: datetime | None = None
    is_written_last: bool = False
    """The status is written only when every action has succeeded: once it stands, nothing repeats them."""
    rests_on: tuple[SeenVersion, ...] = ()
    """These are read again before anything is done; if one has changed since, the plan is dropped, and the next reconcile makes another."""


def normal(reason: str, message: str, about: str = "") -> JobEvent:
    return JobEvent("Normal", reason, message, about)


def warning(reason: str, message: str, about: str = "") -> JobEvent:
    return JobEvent("Warning", reason, message, about)
