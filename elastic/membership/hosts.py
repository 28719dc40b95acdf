"""Define the messages about the hosts of a job whose launcher starts the workers.

The controller sends its facts, the launcher reports, and the rendezvous server answers both. Every field is bounded, as in
elastic.membership.wire.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

HOST_NAME = r"\A[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z"
"""Horovod writes the name of a host into a shell command without quotes."""
UID = r"\A[A-Za-z0-9-]+\Z"
MAX_HOSTS = 8192
MAX_SLOTS = 1024

HostName = Annotated[str, Meta(min_length=1, max_length=253, pattern=HOST_NAME)]
HostNames = Annotated[tuple[HostName, ...], Meta(max_length=MAX_HOSTS)]
Uid = Annotated[str, Meta(min_length=1, max_length=128, pattern=UID)]
Uids = Annotated[tuple[Uid, ...], Meta(max_length=MAX_HOSTS)]
MAX_VALUES = 32
"""Maximum number of values in one report of training."""
Values = Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=MAX_VALUES)]
Slots = Annotated[int, Meta(ge=1, le=MAX_SLOTS)]


class Observed(StrEnum):
    """The source from which the server knows where worker processes run."""

    DRIVER = "driver"  # the launcher's own driver reports it
    PODS = "pods"  # known only from the pods, because the launcher does not report


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every message here."""


class Host(Message, frozen=True):
    """A pod that has not ended, in which the launcher may start workers."""

    name: HostName
    """Name by which the launcher addresses the pod."""
    uid: Uid
    """Uid of the pod."""
    slots: Slots = 1
    is_ready: bool = False
    leaving: bool = False
    """Whether the host must leave."""
    is_local: bool = False
    """Whether this is the launcher's own pod, which needs no proof."""
    when_replaced: bool = False
    """Whether the host may have to leave. It keeps its place until another host takes it."""


class HostFacts(Message, frozen=True):
    """The controller's facts about the hosts of a job."""

    hosts: Annotated[tuple[Host, ...], Meta(max_length=MAX_HOSTS)] = ()
    """All hosts of the job."""
    least: Annotated[int, Meta(ge=1, le=MAX_HOSTS)] = 1
    """Minimum number of hosts that the job may plan to have."""
    wanted: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 0
    """Number of hosts that the job should have."""


class LauncherReport(Message, frozen=True):
    """Everything that a launcher knows, so that a lost message does not matter."""

    launcher: Uid
    """The process that reports. A restarted launcher knows nothing about earlier workers."""
    proven: Uids = ()
    """Pods in which it has run a command."""
    assigned: HostNames = ()
    """Hosts to which the driver has assigned ranks."""
    working: HostNames = ()
    """Hosts on which worker processes run."""
    assignment: Annotated[int, Meta(ge=0, le=2**31)] = 0
    """Number of assignments that this driver has made."""
    size: Annotated[int, Meta(ge=0, le=MAX_HOSTS * MAX_SLOTS)] = 0
    """Number of ranks in the newest assignment."""
    step: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Step of the training program, if it reports."""
    values: Values = msgspec.field(default_factory=dict)
    """Values that the training program reports."""


class HostState(Message, frozen=True):
    """The state of the hosts, by pod uid, as the server tells it to the controller."""

    listed: Uids = ()
    """Hosts on the list."""
    leaving: Uids = ()
    """Hosts that must leave."""
    working: Uids = ()
    """Hosts on which worker processes may run."""
    observed: Annotated[str, Meta(max_length=16, pattern=UID)] = Observed.PODS.value
    """Source of `working`."""
    assignment: Annotated[int, Meta(ge=0, le=2**31)] = 0
    """Number of assignments, if the driver reports it."""
    size: Annotated[int, Meta(ge=0, le=MAX_HOSTS * MAX_SLOTS)] = 0
    """Number of ranks in the newest assignment, if the driver reports it."""


class HostVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A host in the JSON answer: whether it is on the list, and why."""

    name: str
    uid: str
    slots: int
    listed: bool
    unproven: bool
    """Whether it is ready, and the launcher should run a command there."""
    reason: str
    leaving: bool = False


class HostList(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON answer to a reader of the list."""

    version: str
    """Changes with the list and its reasons. `?after=VERSION` waits for another version."""
    observed: str
    error: str = ""
    """Why there is no list to use. The hosts are then only candidates."""
    hosts: tuple[HostVerdict, ...]
