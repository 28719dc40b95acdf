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
    PODS = "pods"  # only from the pods: the launcher does not report


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every message here."""


class Host(Message, frozen=True):
    """A pod that has not ended, in which the launcher may start workers.

    name: as the launcher addresses it. uid: of the pod. leaving: it must go. is_local: the launcher's own pod, which needs no proof.
    when_replaced: it only may have to go, and keeps its place until another host takes it.
    """

    name: HostName
    uid: Uid
    slots: Slots = 1
    is_ready: bool = False
    leaving: bool = False
    is_local: bool = False
    when_replaced: bool = False


class HostFacts(Message, frozen=True):
    """All hosts of a job, the least number of them that it may plan to have, and the number that it should have."""

    hosts: Annotated[tuple[Host, ...], Meta(max_length=MAX_HOSTS)] = ()
    least: Annotated[int, Meta(ge=1, le=MAX_HOSTS)] = 1
    wanted: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 0


class LauncherReport(Message, frozen=True):
    """Everything that a launcher knows, so that a lost message does not matter.

    launcher: the process that reports; a new one knows nothing of the former one's workers. proven: pods in which it has run a command.
    assigned: hosts to which the driver has assigned ranks. working: hosts on which worker processes run. assignment: how many
    assignments this driver has made. size: the number of ranks of the newest. step and values: of the training program, if it reports.
    """

    launcher: Uid
    proven: Uids = ()
    assigned: HostNames = ()
    working: HostNames = ()
    assignment: Annotated[int, Meta(ge=0, le=2**31)] = 0
    size: Annotated[int, Meta(ge=0, le=MAX_HOSTS * MAX_SLOTS)] = 0
    step: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    values: Values = msgspec.field(default_factory=dict)


class HostState(Message, frozen=True):
    """The state of the hosts, by pod uid, as the server tells it to the controller.

    listed: on the list. leaving: known to leave. working: worker processes may run there. observed: how `working` is known. assignment and
    size: of the driver, if it reports.
    """

    listed: Uids = ()
    leaving: Uids = ()
    working: Uids = ()
    observed: Annotated[str, Meta(max_length=16, pattern=UID)] = Observed.PODS.value
    assignment: Annotated[int, Meta(ge=0, le=2**31)] = 0
    size: Annotated[int, Meta(ge=0, le=MAX_HOSTS * MAX_SLOTS)] = 0


class HostVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A host in the JSON answer: whether it is on the list, and why. unproven: it is ready, and the launcher should run a command there."""

    name: str
    uid: str
    slots: int
    listed: bool
    unproven: bool
    reason: str
    leaving: bool = False


class HostList(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON answer to a reader of the list.

    version: changes with the list and its reasons; `?after=VERSION` waits for another one. error: why there is no list to use; the hosts
    are only candidates then.
    """

    version: str
    observed: str
    error: str = ""
    hosts: tuple[HostVerdict, ...]
