"""Hold the input of one reconcile: a job's pods, services and other objects, reduced to the facts that decisions need.

The reductions are pure. They do not depend on where the objects came from or what will be done about them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from elastic.api.names import NODE_NUMBER, REPLICA_INDEX, REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.api.words import HOLDER, IN_WORLD, STEP_REPORTED, WORLD_STANDS
from elastic.signals import own_limits
from elastic.signals.seen import Sight, Toleration, on_node, on_pod, tolerations_of
from elastic.signals.signal import DisruptionSignal, Meaning
from elastic.signals.table import BUILT_IN
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.world import WorldSeen as WorldSeen

LAUNCHER_INDEX = 0
MOST_DIGITS = 9
LONGEST_SAID = 1024  # characters of a worker's condition: its end names the holder, and a tenant can make it very long
ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
GROUP = "elastic-training/group"  # label of pods that can work only with each other: where they meet, or how many they are
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Container:
    """A container's state: exit code and reason once it ended, reason and message while it waits."""

    name: str
    restarts: int = 0
    is_running: bool = False
    exit_code: int | None = None
    exit_reason: str = ""
    waiting: str = ""
    message: str = ""
    ended_at: datetime | None = None
    """The end of the newest run."""
    started_at: datetime | None = None
    """Start of its newest run; unknown while it waits to be started."""
    last_started_at: datetime | None = None  # of the run before this one, of which a restarted container keeps no other trace
    last_exit_code: int | None = None
    last_exit_reason: str = ""
    last_message: str = ""


@dataclass(frozen=True, slots=True)
class InWorld:
    """A worker's condition IN_WORLD, as its pod has it."""

    is_true: bool = False
    reason: str = ""
    message: str = ""
    holder: str = ""
    """The pod's annotation about the condition: which run of the container, and which start of the agent."""

    @property
    def has_state(self) -> bool:
        """Return whether the worker has the state of training. A spare worker is Ready without it."""
        return self.is_true and self.reason in (STEP_REPORTED, WORLD_STANDS)


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    type: str
    index: int
    """Index in its name, because somebody may have changed its label."""
    phase: PodPhase = PodPhase.PENDING
    reason: str = ""
    message: str = ""
    node: str = ""
    is_ready: bool = False
    is_deleting: bool = False
    disruption: str = ""
    unscheduled: str = ""
    containers: tuple[Container, ...] = ()
    inits: tuple[Container, ...] = ()
    group: str = ""
    """The group it was made for; pods of another group cannot work with it."""
    gone_by: datetime | None = None
    """End of the grace of a pod that is being deleted."""
    deadline_s: int | None = None
    """How long it may run, by its own spec."""
    is_forced: bool = False
    """It is being deleted without any grace; what keeps it is a finalizer."""
    index_label: str | None = None
    """Value of its label if it differs from the index, else None."""
    is_unowned: bool = False  # then it is not deleted with the job
    in_world: InWorld | None = None
    """None if the pod has no such readiness gate."""
    sights: tuple[Sight, ...] = ()
    """The signals that the pod itself shows, the worst first."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of NoExecute taints."""
    marks: tuple[tuple[str, str], ...] = ()
    """Its annotations for autoscalers of nodes."""
    created_at: datetime | None = None
    number: int | None = None  # A TrainJob's nodes have numbers, which are independent of the index in the name.
    is_unheard: bool = False  # The cluster marks it as not ready although its containers are: its node has stopped reporting.

    @property
    def is_active(self) -> bool:
        return self.phase is PodPhase.RUNNING and not self.is_deleting

    @property
    def is_over(self) -> bool:
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def restarts(self) -> int:
        return sum(container.restarts for container in (*self.inits, *self.containers))

    def restarts_of(self, container: str) -> int:
        """Return the restarts of this container and of the failed init containers, which must end before it begins."""
        inits = sum(c.restarts for c in self.inits if c.last_exit_code != 0)
        return inits + sum(c.restarts for c in self.containers if c.name == container)

    @property
    def exceeded(self) -> str:
        """The kubelet's words if it evicted the pod because of the pod's own storage limit."""
        return own_limits.exceeded(self.reason, self.message)

    @property
    def stuck_inits(self) -> tuple[Container, ...]:
        """Init containers that fail, or wait for what may never come; without them the others do not begin."""
        return tuple(c for c in self.inits if c.exit_code or (c.waiting and c.waiting not in ORDINARY_WAITS))

    def exit_code(self, container: str) -> int | None:
        return next((c.exit_code for c in self.containers if c.name == container), None)


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    uid: str
    owner: str
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """Another object that belongs to the job. It is kept raw, because plans compare it with the object that they want."""

    kind: str
    name: str
    uid: str
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A node, as far as it decides whether its pods may stay."""

    name: str
    is_cordoned: bool = False
    sights: tuple[Sight, ...] = ()
    """The signals that it shows, the worst first."""
    is_ready: bool = True
    """Its condition Ready is True, or it has none."""
    ready_since: datetime | None = None
    """Time at which its condition Ready became true."""

    @property
    def is_doomed(self) -> bool:
        """Return whether the node goes or may have to go."""
        return any(sight.signal.on.is_of_node and sight.signal.meaning is not Meaning.INFORM for sight in self.sights)

    @property
    def is_lost(self) -> bool:
        """Return whether the node says that nothing on it can be saved."""
        return any(sight.signal.meaning is Meaning.GONE for sight in self.sights)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Key pair of a job whose pods reach each other by ssh; both halves as a Secret holds them."""

    private: str
    public: str


@dataclass(frozen=True, slots=True)
class NotCreated:
    """An object that could not be created in the last reconcile, and the reason.

    It is a pod that the API server refused, with the replica type of its label if it has one, or an object of any kind whose name belongs
    to another owner's object.
    """

    type: str
    message: str
    is_taken: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent look. `pods` are this job's by owner uid, `services` those with its name label; `now` is aware UTC."""

    now: datetime
    settings: Settings
    pods: tuple[Pod, ...] = ()
    left_behind: tuple[Pod, ...] = ()
    """Pods of an earlier job of the same name, which have the names that this job's pods need."""
    not_created: tuple[NotCreated, ...] = ()
    services: tuple[Service, ...] = ()
    owned: tuple[Owned, ...] = ()
    world: WorldSeen | None = None
    is_forgotten: bool = False
    """The rendezvous server has confirmed that it knows nothing of this suspended job."""
    last_step: int | None = None
    """The highest that the rendezvous knew when it forgot the job."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Nodes of the job's pods. If nodes are seen at all, a missing one is gone."""
    doomed: tuple[str, ...] = ()
    """Names of the cluster's nodes that go or may have to go, also of nodes without pods of the job."""
    sees_nodes: bool = True
    sights: tuple[Sight, ...] = ()
    """The signals that the job itself shows."""
    token: str = ""
    launcher_token: str = ""
    status_token: str = ""
    """Tokens by which the rendezvous server knows the job's workers, its launcher, and the reports of its program."""
    etcd_password: str = ""
    """Password of the job's user in the installation's etcd."""
    term: int = 0
    fresh_keys: KeyPair | None = None
    """Made beforehand for a job that needs a key pair and has none yet."""
    remarks: tuple[str, ...] = ()
    """Remarks for the user about a spec that is accepted all the same."""

    def find(self, kind: str, name: str) -> Owned | None:
        return next((o for o in self.owned if o.kind == kind and o.name == name), None)


def pod_from(raw: Mapping[str, Any], table: Sequence[DisruptionSignal] = BUILT_IN) -> Pod:
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions: dict[str, dict[str, Any]] = {str(c.get("type")): c for c in status.get("conditions") or () if isinstance(c, dict)}
    is_own = own_limits.exceeded(status.get("reason") or "", status.get("message") or "")
    disruption, scheduled = conditions.get("DisruptionTarget", {}), conditions.get("PodScheduled", {})
    index, label = _number(metadata["name"].rpartition("-")[2]), labels.get(REPLICA_INDEX, "")
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        type=labels.get(REPLICA_TYPE, ""),
        index=LAUNCHER_INDEX if index is None else index,
        index_label=label if label != ("" if index is None else str(index)) else None,
        is_unowned=not controller_uid(metadata),
        phase=_phase(status.get("phase")),
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        node=(raw.get("spec") or {}).get("nodeName") or "",
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_deleting=bool(metadata.get("deletionTimestamp")),
        disruption=disruption.get("reason", "") if disruption.get("status") == "True" and not is_own else "",
        unscheduled=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        containers=tuple(_container(c) for c in status.get("containerStatuses") or ()),
        group=labels.get(GROUP, ""),
        gone_by=time_of(metadata.get("deletionTimestamp")),
        deadline_s=(raw.get("spec") or {}).get("activeDeadlineSeconds"),
        is_forced=metadata.get("deletionGracePeriodSeconds") == 0,
        in_world=_in_world(raw, conditions.get(IN_WORLD) or {}),
        inits=tuple(_container(c) for c in status.get("initContainerStatuses") or ()),
        sights=on_pod(table, raw),
        tolerations=tolerations_of(raw),
        marks=tuple((key, value) for key, value in (metadata.get("annotations") or {}).items() if key in (SAFE_TO_EVICT, DELETION_COST)),
        created_at=time_of(metadata.get("creationTimestamp")),
        number=_number(labels.get(NODE_NUMBER)),
        is_unheard=_is_unheard(conditions),
    )


def _number(word: object) -> int | None:
    return int(word) if isinstance(word, str) and word.isdecimal() and len(word) <= MOST_DIGITS else None


def _is_unheard(conditions: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the node lifecycle controller has set Ready to False. A kubelet does that only with a reason."""
    ready = conditions.get("Ready", {})
    return (ready.get("status"), ready.get("reason") or "", conditions.get("ContainersReady", {}).get("status")) == ("False", "", "True")


def _in_world(raw: Mapping[str, Any], condition: Mapping[str, Any]) -> InWorld | None:
    gates = (raw.get("spec") or {}).get("readinessGates") or ()
    if all(gate.get("conditionType") != IN_WORLD for gate in gates):
        return None
    holder = (raw["metadata"].get("annotations") or {}).get(HOLDER, "")
    said = (condition.get("message") or "")[-LONGEST_SAID:]
    return InWorld(condition.get("status") == "True", condition.get("reason") or "", said, holder)


def service_from(raw: Mapping[str, Any]) -> Service:
    metadata = raw["metadata"]
    owner = controller_uid(metadata)
    return Service(name=metadata["name"], uid=metadata.get("uid", ""), owner=owner, is_deleting=bool(metadata.get("deletionTimestamp")))


def node_from(raw: Mapping[str, Any], table: Sequence[DisruptionSignal] = BUILT_IN) -> Node:
    """Return what decides about the pods of this node."""
    conditions = (c for c in (raw.get("status") or {}).get("conditions") or () if isinstance(c, dict))
    ready = next((c for c in conditions if c.get("type") == "Ready"), {})
    is_ready = ready.get("status", "True") == "True"
    return Node(
        name=raw["metadata"]["name"],
        is_cordoned=bool((raw.get("spec") or {}).get("unschedulable")),
        sights=on_node(table, raw),
        is_ready=is_ready,
        ready_since=time_of(ready.get("lastTransitionTime")) if is_ready else None,
    )


def time_of(text: str | None) -> datetime | None:
    """Return the time; None for no date, and for one that a datetime cannot hold, because the API server accepts the year 0."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _phase(word: str | None) -> PodPhase:
    try:
        return PodPhase(word or "Pending")
    except ValueError:
        return PodPhase.UNKNOWN


def _container(raw: Mapping[str, Any]) -> Container:
    state, last = raw.get("state") or {}, (raw.get("lastState") or {}).get("terminated") or {}
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    return Container(
        name=raw.get("name", ""),
        restarts=int(raw.get("restartCount") or 0),
        is_running="running" in state,
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason") or "",
        waiting=waiting.get("reason") or "",
        message=ended.get("message") or waiting.get("message") or "",
        ended_at=time_of(ended.get("finishedAt") or last.get("finishedAt")),
        started_at=time_of((state.get("running") or ended).get("startedAt")),
        last_started_at=time_of(last.get("startedAt")),
        last_exit_code=last.get("exitCode"),
        last_exit_reason=last.get("reason") or "",
        last_message=last.get("message") or "",
    )
